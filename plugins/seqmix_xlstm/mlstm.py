"""The mLSTM cell in torch: its three forms, and the binding of the op ``xlstm.mlstm``.

B batch, H heads, S sequence, K key size, V value size.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from seqmix.dtypes import dtype_name
from seqmix.errors import ConfigError, did_you_mean
from seqmix.flops import flop_formula
from seqmix.op import op
from seqmix_ir.builder import infer_types
from seqmix_ir.dims import ceildiv
from seqmix_ir.errors import IRError
from seqmix_ir.ops.precision import wider_dtype
from seqmix_ir.types import TensorType
from seqmix_xlstm.mlstm_chunks import chunk_mlstm, chunk_mlstm_backward
from seqmix_xlstm.mlstm_forms import LOWEST
from seqmix_xlstm.mlstm_gates import preactivations
from seqmix_xlstm.mlstm_op import Mlstm

__all__ = ["mlstm"]

_FORMS = ("chunkwise", "recurrent", "parallel")


def mlstm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    input_gate: Tensor,
    forget_gate: Tensor,
    state: Tensor,
    m: Tensor,
    *,
    scale_on: str = "q",
    input: str = "exp",
    eps: float = 1e-6,
    soft_cap: float = 0.0,
    normalize: bool = True,
    chunk: int = 64,
    form: str = "chunkwise",
) -> tuple[Tensor, Tensor, Tensor]:
    """The cell: h ``[B, H, S, V]``, the next state, the next m; equations are in :class:`Mlstm`.

    ``q``, ``k [B, H, S, K]``, ``v [B, H, S, V]`` of one dtype, gates ``[B, H, S]`` before
    activation, ``state [B, H, K, V + 1]`` (C with n as its last column) and ``m [B, H]``, both
    zeros at the start and float32 beside 16-bit q, k, v. Nothing is changed in place. Gradients
    are true ones: the divisor and m are differentiated too.

    ``form`` says how eager torch computes it, to the same values: "chunkwise" is linear in S,
    "recurrent" goes token by token, "parallel" is quadratic in S. All start from the given m. The
    parallel form of the paper has none: as eps is added after stabilising, its weight depends on
    m, and that form differs by about ``eps * h`` from this one. A captured graph has one op for
    any form. Raises ConfigError for attributes and shapes that do not fit.
    """
    attributes: dict[str, Any] = {
        "scale_on": scale_on,
        "input": input,
        "eps": eps,
        "soft_cap": soft_cap,
        "normalize": normalize,
        "chunk": chunk,
    }
    operands = (q, k, v, input_gate, forget_gate, state, m)
    if torch.compiler.is_compiling():
        h, state, m = _MLSTM(*operands, **attributes)
        return h, state, m
    _check(operands, tuple(attributes.values()), form)
    if form == "recurrent":
        return _token_by_token(operands, attributes)
    if form == "parallel":
        attributes["chunk"] = q.shape[2]
    h, state, m = _MLSTM(*operands, **attributes)
    return h, state, m


def _check(operands: tuple[Tensor, ...], attributes: tuple[Any, ...], form: str) -> None:
    """ConfigError for what does not fit."""
    if form not in _FORMS:
        raise ConfigError(
            f"mlstm: form is {form!r}, expected one of {_FORMS}{did_you_mean(form, _FORMS)}"
        )
    try:
        _infer(attributes, tuple([(x.dtype, x.shape) for x in operands]))
    except IRError as error:
        raise ConfigError(f"mlstm: {error}") from error


@lru_cache(maxsize=256)
def _infer(
    attributes: tuple[Any, ...], types: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
) -> None:
    """IRError for what does not fit. Remembered, as decoding asks again and again."""
    operands = (TensorType(dtype_name(dtype), tuple(shape)) for dtype, shape in types)
    infer_types(Mlstm(*attributes), tuple(operands))


def _token_by_token(
    operands: tuple[Tensor, ...], attributes: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    *sequences, state, m = operands
    h = []
    for t in range(sequences[0].shape[2]):
        token = (x[:, :, t : t + 1] for x in sequences)
        y, state, m = _MLSTM(*token, state, m, **attributes)
        h.append(y)
    return torch.cat(h, 2), state, m


def _forward(*operands: Tensor, **attributes: Any) -> tuple[Tensor, ...]:
    """The results, and the states before each chunk but the first ``[N - 1, B, H, K, V + 1]``."""
    cell = Mlstm(**attributes)
    *given, state, m = operands
    wide = torch.promote_types(given[0].dtype, torch.float32)
    compute = _one_token if given[0].shape[2] == 1 else chunk_mlstm
    dtypes = given[2].dtype, state.dtype, m.dtype
    narrow = dtypes != (wide, wide, wide)
    if narrow:
        state, m = state.to(wide), m.to(wide)
    h, last, last_m, states = compute((*given, state, m), cell)
    if last_m is m:
        # Without a stabiliser it is handed on, but results may not be operands.
        last_m = m.clone()
    if narrow:
        # Each `to` that changes nothing costs as much as a small product.
        h, last, last_m = (x.to(d) for x, d in zip((h, last, last_m), dtypes, strict=True))
    return h, last, last_m, states


def _one_token(operands: tuple[Tensor, ...], cell: Mlstm) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As :func:`chunk_mlstm`, with as few calls as there can be: they are what decoding costs."""
    q, k, v, i, f, state, m = operands
    (B, H, K, _), V = state.shape, v.shape[3]
    R = B * H
    if q.dtype != m.dtype:
        q, k, v = q.to(m.dtype), k.to(m.dtype), v.to(m.dtype)
    i, f = preactivations(i, f, m.dtype, cell.soft_cap, cell.stabilised)
    i, f, below = i.reshape(R, 1, 1), f.reshape(R, 1, 1), None
    if cell.stabilised:
        kept = m.reshape(R, 1, 1) + f
        now = torch.maximum(kept, i).clamp_min_(LOWEST)
        # It may overflow, as nothing is differentiated here: what is divided by inf is 0.
        m, f, i, below = now.view(B, H), kept.sub_(now), i - now, now.neg().exp_()
    v = torch.cat((v.reshape(R, 1, V), torch.ones_like(i)), 2)
    k = k.reshape(R, K, 1) * i.exp()
    scale = K**-0.5
    of_q, of_k = (scale, 1.0) if cell.scale_on == "q" else (1.0, scale)
    state = (state.reshape(R, K, V + 1) * f.exp()).addcmul_(k, v, value=of_k)
    # With beta 0 the first operand lends its shape alone.
    y = torch.baddbmm(v, q.reshape(R, 1, K), state, beta=0, alpha=of_q)
    h, reads = y.split_with_sizes((V, 1), 2)
    if cell.normalize:
        size = reads.abs_()
        size = size.clamp_min_(1.0) if below is None else torch.maximum(size, below)
        h = h / (size.add_(cell.eps) if cell.stabilised and cell.eps else size)
    h, state = h.reshape(B, H, 1, V), state.view(B, H, K, V + 1)
    return h, state, m, state.new_empty((0, B, H, K, V + 1))


def _backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
    **attributes: Any,
) -> list[Tensor | None]:
    wide = torch.promote_types(operands[0].dtype, torch.float32)
    *given, state, m = operands
    # The gates in their own dtype: which side of a max won is decided by what forward saw.
    found = chunk_mlstm_backward(
        tuple(g.to(wide) for g in grads),
        (*given, state.to(wide), m.to(wide)),
        tuple(x.to(wide) for x in (outputs[0], outputs[1], outputs[3])),
        Mlstm(**attributes),
    )
    return [g.to(x.dtype) for g, x in zip(found, operands, strict=True)]


def _chunk_states(defn: Mlstm, q: TensorType, *rest: TensorType) -> TensorType:
    N, state = ceildiv(q.shape[2], defn.chunk), rest[4]
    return TensorType(wider_dtype(q.dtype), (N - 1, *state.shape))


@flop_formula("xlstm_mlstm")
def _flops(q: tuple[int, ...], k: object, v: tuple[int, ...], *_: object, **more: object) -> int:
    """Each token adds to the memory, one column wider than its value, and reads it."""
    B, H, S, K = q
    return 2 * 2 * B * H * S * K * (v[3] + 1)


_MLSTM = op(
    Mlstm,
    eager=_forward,
    backward=_backward,
    saved={"chunk_states": _chunk_states},
)
