"""Linear attention with decay, chunk by chunk, with its backward pass.

B batch, H heads, S sequence, K key size, V value size; N chunks of C tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from seqmix.op import op
from seqmix_ir.dims import ceildiv
from seqmix_ir.ops import LinearAttention
from seqmix_ir.ops.precision import wider_dtype
from seqmix_ir.types import TensorType

__all__ = ["linear_attention"]

# With a decay per key channel a chunk takes C * C * K products, so that small ones are faster.
_KEY_CHUNK = 16
# Elements of one intermediate result: 512 KiB in float32.
_GROUP = 1 << 17


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    state: Tensor,
    *,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """``S_t = exp(g_t) S_{t-1} + k_t v_t^T``, ``y_t = q_t^T S_t``; returns y and the last state.

    ``q``, ``k [B, H, S, K]``, ``v [B, H, S, V]``, ``state [B, H, K, V]``; ``log_decay`` g is
    ``[B, H, S]`` (per head), ``[B, H, S, K]`` (per key channel) or None (no decay). Nothing is
    scaled: scale q. Time and memory are linear in S; sums are float32 (float64 for float64), and
    state and decays may be float32 beside 16-bit q, k and v. ``chunk`` trades speed alone.
    """
    y, last = _LINEAR_ATTENTION(q, k, v, log_decay, state, chunk=chunk)
    return y, last


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    state: Tensor,
    *,
    chunk: int = 64,
) -> tuple[Tensor, Tensor, Tensor]:
    """The results, and the states before each chunk ``[B, H, N, K, V]``."""
    wide = torch.promote_types(q.dtype, torch.float32)
    carry = state.to(wide)
    if q.shape[2] == 1:
        y, last = _one_token(q, k, v, log_decay, carry)
        return y.to(v.dtype), last.to(state.dtype), carry.unsqueeze(2).clone()
    x = _cut(q, k, v, log_decay, chunk)
    B, H, N, C, V = x.v.shape
    y = x.v.new_empty(B, H, N, C, V)
    before = x.v.new_empty(B, H, N, x.k.shape[-1], V)
    for part in _groups(x):
        y[:, :, part], before[:, :, part], carry = _some_chunks(x.part(part), carry)
    return _joined(y, q.shape[2]).to(v.dtype), carry.to(state.dtype), before


def _some_chunks(x: _Chunks, carry: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What some chunks give, the state before each of them, and the one after the last."""
    decays = _decays(x.log_decay)
    added = (x.k if decays is None else x.k * decays.to_end).mT @ x.v
    before, carry = _pass_on(carry, added, decays)
    y = _masked_scores(x, decays) @ x.v
    queries = x.q if decays is None else x.q * decays.from_start
    # One pass over y instead of two.
    y.flatten(0, 2).baddbmm_(queries.flatten(0, 2), before.flatten(0, 2))
    return y, before, carry


def _groups(x: _Chunks) -> Iterator[slice]:
    """Chunks whose intermediate results fit into a cache, and come from memory at hand."""
    B, H, N, C, V = x.v.shape
    step = max(1, _GROUP // (B * H * C * max(V, x.k.shape[-1], C)))
    return (slice(start, start + step) for start in range(0, N, step))


def _one_token(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    q, k, v = (t.to(state.dtype) for t in (q, k, v))
    if log_decay is not None:
        decay = log_decay.to(state.dtype).exp()
        state = state * (decay[..., None] if decay.dim() == 3 else decay.mT)
    state = torch.addcmul(state, k.mT, v)
    return q @ state, state


@dataclass(frozen=True)
class _Chunks:
    """Operands as ``[B, H, N, C, ..]``; decays as ``[B, H, N, C, 1 or K]``."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None

    def part(self, chunks: slice) -> _Chunks:
        """Some of the chunks."""
        log_decay = None if self.log_decay is None else self.log_decay[:, :, chunks]
        q, k, v = (t[:, :, chunks] for t in (self.q, self.k, self.v))
        return _Chunks(q, k, v, log_decay)


@dataclass(frozen=True)
class _Decays:
    """Products of decays between two places of a chunk.

    Each is the exponential of a sum over just the tokens between the places: the difference of two
    running sums would lose digits, and be NaN after a decay to 0. ``between [B, H, N, C, C]`` (or
    with K as a last axis) leads from the token of a column to the later one of a row.
    """

    from_start: Tensor
    to_end: Tensor
    total: Tensor
    between: Tensor


def _cut(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, chunk: int) -> _Chunks:
    """Cut the sequences into chunks; tokens of 0 and decays of 1 fill the last one."""
    B, H, S, _ = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    C = min(_chunk_size(chunk, log_decay is not None and log_decay.dim() == 4), S)
    N = -(-S // C)

    def cut(x: Tensor) -> Tensor:
        x = x.to(wide)
        x = pad(x, (0, 0, 0, N * C - S)) if N * C > S else x
        return x.reshape(B, H, N, C, x.shape[-1])

    if log_decay is not None and log_decay.dim() == 3:
        log_decay = log_decay.unsqueeze(-1)
    return _Chunks(cut(q), cut(k), cut(v), None if log_decay is None else cut(log_decay))


def _chunk_size(chunk: int, per_key: bool) -> int:
    return min(chunk, _KEY_CHUNK) if per_key else chunk


def _joined(y: Tensor, length: int) -> Tensor:
    """Chunks as one sequence again, without what filled the last one."""
    return y.flatten(2, 3)[:, :, :length].contiguous()


def _decays(log_decay: Tensor | None) -> _Decays | None:
    if log_decay is None:
        return None
    C = log_decay.shape[3]
    if log_decay.shape[-1] == 1:
        steps = log_decay.expand(*log_decay.shape[:4], C).tril(-1)
    else:
        later = log_decay.new_ones(C, C, dtype=torch.bool).tril(-1)
        steps = torch.where(later.unsqueeze(-1), log_decay.unsqueeze(4), 0.0)
    between = steps.cumsum(3).exp_()
    # The last row leads to the end of the chunk.
    to_end = between[:, :, :, -1]
    to_end = to_end.unsqueeze(-1) if log_decay.shape[-1] == 1 else to_end
    from_start = log_decay.cumsum(3).exp_()
    return _Decays(from_start, to_end, from_start[:, :, :, -1], between)


def _pass_on(
    carry: Tensor, added: Tensor, decays: _Decays | None, *, backwards: bool = False
) -> tuple[Tensor, Tensor]:
    """What reaches each chunk, and what leaves the last one: one product per chunk.

    That is the state before a chunk or, backwards, the gradient of the state after it.
    """
    reached, order = torch.empty_like(added), range(added.shape[2])
    for n in reversed(order) if backwards else order:
        reached[:, :, n] = carry
        if decays is None:
            carry = carry + added[:, :, n]
        else:
            carry = torch.addcmul(added[:, :, n], carry, decays.total[:, :, n].unsqueeze(-1))
    return reached, carry


def _masked_scores(x: _Chunks, decays: _Decays | None) -> Tensor:
    """``[B, H, N, C, C]``: what a query takes of the value at its own and each earlier token."""
    if decays is None:
        return (x.q @ x.k.mT).tril_()
    if decays.between.dim() == 5:
        return (x.q @ x.k.mT).mul_(decays.between).tril_()
    scores = (decays.between * x.k.unsqueeze(3)) @ x.q.unsqueeze(-1)
    return scores.squeeze(-1).tril_()


def _backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor | None, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
    *,
    chunk: int = 64,
) -> list[Tensor | None]:
    q, k, v, log_decay, state = operands
    if q is None or k is None or v is None or state is None:
        raise TypeError("linear_attention: q, k, v and state are needed")
    S, wide, before = q.shape[2], torch.promote_types(q.dtype, torch.float32), outputs[2]
    x = _cut(q, k, v, log_decay, chunk)
    decays = _decays(x.log_decay)
    grad = _cut(grads[0], k, v, log_decay, chunk).q
    queries = x.q if decays is None else x.q * decays.from_start
    after, first = _pass_on(grads[1].to(wide), queries.mT @ grad, decays, backwards=True)
    pairs = (grad @ x.v.mT).tril_()
    dq, dk = _within_grads(x, decays, pairs)
    from_before, from_after = grad @ before.mT, x.v @ after.mT
    dq = dq + (from_before if decays is None else from_before * decays.from_start)
    dk = dk + (from_after if decays is None else from_after * decays.to_end)
    keys = x.k if decays is None else x.k * decays.to_end
    dv = _masked_scores(x, decays).mT @ grad + keys @ after
    dg = None
    if log_decay is not None and needs[3]:
        dg = _decay_grad(x, dq, dk, before, after, outputs[1].to(wide), log_decay)
    return [
        _joined(dq, S).to(q.dtype),
        _joined(dk, S).to(k.dtype),
        _joined(dv, S).to(v.dtype),
        dg,
        first.to(state.dtype),
    ]


def _within_grads(x: _Chunks, decays: _Decays | None, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of q and k from within their chunk; ``pairs`` are those of the scores."""
    if decays is None or decays.between.dim() == 5:
        pairs = pairs if decays is None else pairs * decays.between
        return pairs @ x.k, pairs.mT @ x.q
    weighted = decays.between * pairs.unsqueeze(-1)
    dq = (weighted * x.k.unsqueeze(3)).sum(4)
    return dq, (weighted * x.q.unsqueeze(4)).sum(3)


def _decay_grad(
    x: _Chunks,
    dq: Tensor,
    dk: Tensor,
    before: Tensor,
    after: Tensor,
    last: Tensor,
    log_decay: Tensor,
) -> Tensor:
    """The gradient of ``log_decay``.

    Up to a factor of q and k the running sum of decays enters everything, so that its gradient is
    q * dq - k * dk, and that of the state at the end of the chunk; summed from behind it is the
    gradient of each decay. A decay to 0 passes nothing on.
    """
    reached = torch.cat([before[:, :, 1:], last.unsqueeze(2)], 2)
    of_sum = x.q * dq - x.k * dk
    of_sum[:, :, :, -1] += (after * reached).sum(-1)
    if log_decay.dim() == 3:
        of_sum = of_sum.sum(-1, keepdim=True)
    dg = _joined(of_sum.flip(3).cumsum(3).flip(3), log_decay.shape[2])
    dg = dg.squeeze(-1) if log_decay.dim() == 3 else dg
    return dg.masked_fill(log_decay == -torch.inf, 0.0).to(log_decay.dtype)


def _chunk_states(
    defn: LinearAttention,
    q: TensorType,
    k: TensorType,
    v: TensorType,
    log_decay: TensorType | None,
    state: TensorType,
) -> TensorType:
    C = _chunk_size(defn.chunk, log_decay is not None and log_decay.rank == 4)
    B, H, K, V = state.shape
    return TensorType(wider_dtype(q.dtype), (B, H, ceildiv(q.shape[2], C), K, V))


_LINEAR_ATTENTION = op(
    LinearAttention,
    eager=_forward,
    backward=_backward,
    saved={"chunk_states": _chunk_states},
)
