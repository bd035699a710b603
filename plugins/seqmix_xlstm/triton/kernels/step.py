"""The mLSTM cell for one token, as in decoding.

B batch, H heads, K key size, V value size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Config, Constants, Kernel, power_of_two
from seqmix_xlstm.triton.kernels.gates import divisor, token_gates
from seqmix_xlstm.triton.kernels.tiles import cases_of, normalizer, state_tile

__all__ = ["MLSTM_STEP"]


@triton.jit(do_not_specialize=["H"])
def mlstm_step(
    q, k, v, i, f, state, m, h, last, last_m,
    q_b, q_h, k_b, k_h, v_b, v_h, i_b, i_h, f_b, f_h, H,
    K: tl.constexpr, V: tl.constexpr, SCALE_Q: tl.constexpr, SCALE_K: tl.constexpr,
    STABLE: tl.constexpr, NORMALIZE: tl.constexpr, CAP: tl.constexpr, EPS: tl.constexpr,
    ACC: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One token: the state is read once and written once."""
    head = tl.program_id(1).to(tl.int64)
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    q += head // H * q_b + head % H * q_h
    k += head // H * k_b + head % H * k_h
    v += head // H * v_b + head % H * v_h
    i += head // H * i_b + head % H * i_h
    f += head // H * f_b + head % H * f_h
    given = tl.load(m + head).to(ACC)
    log_decay, log_weight, now = token_gates(i, f, 1, 1, given, STABLE, CAP, ACC)
    kept, counts = tl.exp(log_decay), tl.exp(log_weight) * SCALE_K
    added = tl.load(v + value, mask=value < V, other=0.0).to(ACC)
    result = tl.zeros([BLOCK_V], ACC)
    reads = tl.zeros([1], ACC)
    size: tl.constexpr = K * (V + 1)
    out = last.dtype.element_ty
    for part in range(0, K, BLOCK_K):
        key = part + tl.arange(0, BLOCK_K)
        own = (key < K)[:, None] & (value < V)[None, :]
        queries = tl.load(q + key, mask=key < K, other=0.0).to(ACC) * SCALE_Q
        keys = tl.load(k + key, mask=key < K, other=0.0).to(ACC) * counts
        norm = normalizer(state + head * size, key, key < K, V).to(ACC) * kept + keys
        carry = state_tile(state + head * size, key, value, own, V).to(ACC) * kept[:, None]
        carry += keys[:, None] * added[None, :]
        to = last + head * size + key * (V + 1)
        # In the interpreter a scalar makes no mask of a block.
        summed = (key < K) & (key * 0 + tl.program_id(0) == 0)
        tl.store(to + V, norm.to(out), mask=summed)
        tl.store(to[:, None] + value[None, :], carry.to(out), mask=own)
        reads += tl.sum(queries * norm, 0)
        result += tl.sum(queries[:, None] * carry, 0)
    if NORMALIZE:
        below, _ = divisor(reads, now, STABLE, EPS, ACC)
        result = result / below
    tl.store(h + head * V + value, result.to(h.dtype.element_ty), mask=value < V)
    ahead = now if STABLE else tl.zeros_like(now) + given
    to = last_m + head + tl.arange(0, 1)
    tl.store(to, ahead.to(last_m.dtype.element_ty), mask=tl.arange(0, 1) + tl.program_id(0) == 0)


def _default_step(dtype: torch.dtype, constants: Constants) -> Config:
    width = min(32, power_of_two(constants["V"]))
    return Config({"BLOCK_K": min(64, power_of_two(constants["K"])), "BLOCK_V": width}, 2, 1)


def _space_step(dtype: torch.dtype, constants: Constants) -> list[Config]:
    widths = [w for w in (16, 32, 64, 128) if w <= power_of_two(constants["V"], 16)]
    return [
        Config({"BLOCK_K": min(keys, power_of_two(constants["K"])), "BLOCK_V": width}, warps, 1)
        for keys in (32, 64, 128)
        for width in widths
        for warps in (1, 2, 4)
    ]


MLSTM_STEP = Kernel(
    mlstm_step,
    {
        "q": "T", "k": "T", "v": "T", "i": "A", "f": "A", "state": "A", "m": "A", "h": "T",
        "last": "A", "last_m": "A", "H": "i",
        **{f"{name}_{axis}": "s" for name in "qkvif" for axis in "bh"},
    },
    _default_step,
    cases_of(mlstm_step)[:4],
    _space_step,
)  # fmt: skip
