"""A bank of diagonal state spaces in torch: chunks of matrix products between a few states.

B batch, S sequence, G state spaces, V inputs that share one of them, N complex modes; Q chunks of
C tokens. Inside, complex numbers are complex tensors: a kernel is never captured.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seqmix.flops import flop_formula
from seqmix.op import op
from seqmix_gated_conv.state_space_backward import state_space_backward
from seqmix_gated_conv.state_space_forms import CHUNK
from seqmix_gated_conv.state_space_op import StateSpace
from seqmix_gated_conv.state_space_tables import (
    Rows,
    Tables,
    as_complex,
    as_real,
    chunks,
    some_spaces,
    unchunked,
)
from seqmix_ir.dims import ceildiv, minimum_size
from seqmix_ir.ops.precision import wider_dtype
from seqmix_ir.types import TensorType

__all__ = ["state_space"]


def state_space(
    x: Tensor, decay: Tensor, readout: Tensor, state: Tensor, valid: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``h_t = decay h_{t-1} + x_t``, ``y_t = Re(sum_n readout_n h_{t,n})``; y and the last h.

    ``x [B, S, V, G]``: V inputs share each of the G state spaces; ``decay`` and ``readout
    [G, N, 2]`` are real and imaginary parts, best in float64; ``state [B, G, V, N, 2]``, zeros at
    the start, float32 where x is 16-bit. Where ``valid [B, S]`` is false y is 0 and the state
    stays the same. Time and memory are linear in S; sums are float32 (float64 for float64).
    """
    y, last = _STATE_SPACE(x, decay, readout, state, valid)
    return y, last


def _forward(
    x: Tensor, decay: Tensor, readout: Tensor, state: Tensor, valid: Tensor | None
) -> tuple[Tensor, ...]:
    """The results; then, as real pairs, the states before each chunk and the powers."""
    if valid is not None and bool(valid.all()):
        # A kernel may look: without padding nothing has to move.
        valid = None
    if x.shape[1] == 1:
        return _one_token(x, decay, readout, state, valid)
    B, S, V, G = x.shape
    wide = torch.promote_types(x.dtype, torch.float32)
    C, N = min(CHUNK, S), decay.shape[1]
    rows = Rows(valid, x)
    tokens = rows.compacted(x)
    y, last = torch.empty_like(tokens), torch.empty_like(state)
    before = x.new_empty((G, B, V, -(-S // C), N), dtype=wide.to_complex())
    powers = x.new_empty((G, C + 1, N, 2), dtype=wide)
    for part in some_spaces(decay, S):
        tables = Tables.of(decay[part], readout[part], x)
        powers[part] = torch.view_as_real(tables.powers)
        u = chunks(tokens[..., part], tables)
        _fill_states(before[part], u, state[:, part], tables)
        z = torch.bmm(u.flatten(1, 3), tables.toeplitz())
        z.baddbmm_(as_real(before[part]).flatten(1, 3), tables.from_start().mT)
        y[..., part] = unchunked(z.view(u.shape), S)
        last[:, part] = _last(u, before[part], rows, tables)
    return rows.back(y), last, torch.view_as_real(before), powers


def _one_token(
    x: Tensor, decay: Tensor, readout: Tensor, state: Tensor, valid: Tensor | None
) -> tuple[Tensor, ...]:
    """The definition."""
    tables = Tables.of(decay, readout, x)
    h = torch.view_as_complex(state.to(tables.wide).contiguous())
    token = x[:, 0].to(tables.wide).mT.unsqueeze(-1)
    new = h * tables.powers[:, 1].unsqueeze(1) + token
    y = (new * tables.readout.unsqueeze(1)).real.sum(-1)
    if valid is not None:
        here = valid[:, :, None]
        new, y = torch.where(here.unsqueeze(-1), new, h), torch.where(here, y, 0.0)
    before = torch.view_as_real(h.transpose(0, 1).unsqueeze(3))
    return (
        y.mT.unsqueeze(1).to(x.dtype, memory_format=torch.contiguous_format, copy=True),
        torch.view_as_real(new).to(state.dtype),
        before.clone(memory_format=torch.contiguous_format),
        torch.view_as_real(tables.powers),
    )


def _fill_states(before: Tensor, u: Tensor, state: Tensor, tables: Tables) -> None:
    """Write the state before each chunk, ``[G, B, V, Q, N]``, from ``state [B, G, V, N, 2]``."""
    G, B, V, Q, C = u.shape
    h = before[:, :, :, 0]
    h.copy_(torch.view_as_complex(state.to(tables.wide).contiguous()).transpose(0, 1))
    if Q == 1:
        return
    added = torch.bmm(u[:, :, :, : Q - 1].reshape(G, -1, C), tables.to_end())
    parts = as_complex(added).view(G, B, V, Q - 1, -1)
    whole = tables.powers[:, -1, None, None]
    for q in range(Q - 1):
        h = torch.addcmul(parts[:, :, :, q], h, whole, out=before[:, :, :, q + 1])


def _last(u: Tensor, before: Tensor, rows: Rows, tables: Tables) -> Tensor:
    """The state after the last token of each row, real pairs ``[B, G, V, N, 2]``.

    That is the state before its chunk, and the tokens of its chunk.
    """
    chunk, steps, place = rows.last_chunk(tables.size)
    window = u.flatten(3).gather(3, place.clamp(min=0)[None, :, None].expand(*u.shape[:3], -1))
    window.masked_fill_((place < 0)[None, :, None], 0.0)
    added = as_complex(torch.bmm(window.flatten(1, 2), tables.to_end()))
    added = added.view(*u.shape[:3], -1).transpose(0, 1)
    start = before[:, torch.arange(len(chunk)), :, chunk]
    decay = tables.powers[:, steps].transpose(0, 1).unsqueeze(2)
    return torch.view_as_real(torch.addcmul(added, start, decay))


def _states_type(
    defn: StateSpace, x: TensorType, decay: TensorType, *others: TensorType | None
) -> TensorType:
    B, S, V, G = x.shape
    shape = (G, B, V, ceildiv(S, CHUNK), decay.shape[1], 2)
    return TensorType(wider_dtype(x.dtype), shape)


def _powers_type(
    defn: StateSpace, x: TensorType, decay: TensorType, *others: TensorType | None
) -> TensorType:
    G, N, _ = decay.shape
    return TensorType(wider_dtype(x.dtype), (G, minimum_size(x.shape[1], CHUNK) + 1, N, 2))


@flop_formula("gated_conv_state_space")
def _flops(x: tuple[int, ...], decay: tuple[int, ...], *_: object, **more: object) -> int:
    """Of the recurrence, a complex product and half of one; a chunk spends as much."""
    return 12 * math.prod(x) * decay[1]


_STATE_SPACE = op(
    StateSpace,
    eager=_forward,
    backward=state_space_backward,
    saved={"states": _states_type, "powers": _powers_type},
)
