"""The mLSTM cell over a whole sequence, chunk by chunk, and its backward pass.

B batch, H heads, S sequence, K key size, V value size; N chunks of C tokens, and G = N * B * H
chunks of all rows and heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from seqmix_xlstm.mlstm_gates import Gates, cell_gates, divisor, gate_grads
from seqmix_xlstm.mlstm_op import Mlstm

__all__ = ["chunk_mlstm", "chunk_mlstm_backward"]


def chunk_mlstm(operands: tuple[Tensor, ...], cell: Mlstm) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """h, the last state, the last m, and the states before each chunk but the first.

    ``operands`` are those of the op, the state and m in the dtype of the sums, as are results.
    """
    q, _, v, i, f, state, m = operands
    gates = cell_gates(i, f, m, cell.soft_cap, cell.stabilised)
    x = _Chunks.of(operands, gates, cell)
    states, last = _pass_on(state, torch.bmm(x.weighted_k.mT, x.v), x.total)
    y, decayed_q, R = torch.bmm(x.scores(), x.v), x.decayed_q, m.numel()
    y[:R].baddbmm_(decayed_q[:R], state.flatten(0, 1))
    y[R:].baddbmm_(decayed_q[R:], states.flatten(0, 2))
    V = v.shape[3]
    h = y[..., :V]
    if cell.normalize:
        floor = None if gates.m is None else x.cut(gates.m)
        below, _ = divisor(y[..., V], floor, cell.eps)
        h = h / below.unsqueeze(-1)
    return x.join(h, q.shape[2]), last, gates.last, states


@dataclass(frozen=True)
class _Chunks:
    """The operands of all chunks, and what they are multiplied with, in the dtype of the sums.

    Every factor is the exponential of a sum over just the tokens between two places: the
    difference of two running sums would lose digits, and be NaN after a forget gate of 0.
    ``between [G, C, C]`` is what a later token (row) takes of an earlier one (column) per unit of
    their product, decay, weight and scale together; above the diagonal it is meaningless.
    ``from_start``, ``to_end [G, C, 1]`` and ``total [N, B, H, 1, 1]`` lead from the state before
    the chunk to a token, from a token to the state after the chunk, and past the whole chunk.
    """

    rows: tuple[int, int, int]
    q: Tensor
    k: Tensor
    v: Tensor
    between: Tensor
    from_start: Tensor
    to_end: Tensor
    total: Tensor

    @classmethod
    def of(cls, operands: tuple[Tensor, ...], gates: Gates, cell: Mlstm) -> _Chunks:
        """Cut the sequences; tokens of 0 fill the last chunk, v is widened by a column of ones."""
        B, H, S, K = operands[0].shape
        C, wide = min(cell.chunk, S), gates.log_decay.dtype
        q, k, v = (_cut(x.to(wide), C) for x in operands[:3])
        decay, weight = _cut(gates.log_decay, C), _cut(gates.log_weight, C)
        later = decay.new_ones(C, C, dtype=torch.bool).tril_(-1)
        between = torch.where(later, decay.unsqueeze(2), 0.0).cumsum_(1)
        from_start = decay.cumsum(1).exp_().unsqueeze(-1)
        N = q.shape[0] // (B * H)
        # A copy: the product with the scale must not reach it.
        total = from_start[:, -1].clone().view(N, B, H, 1, 1)
        to_end = (between[:, -1] + weight).exp_().unsqueeze(-1)
        (from_start if cell.scale_on == "q" else to_end).mul_(K**-0.5)
        between.add_((weight - 0.5 * math.log(K)).unsqueeze(1)).exp_()
        return cls((N, B, H), q, k, pad(v, (0, 1), value=1.0), between, from_start, to_end, total)

    @property
    def decayed_q(self) -> Tensor:
        """What reads the state before the chunk."""
        return self.q * self.from_start

    @property
    def weighted_k(self) -> Tensor:
        """What adds to the state after the chunk."""
        return self.k * self.to_end

    def scores(self) -> Tensor:
        """``[G, C, C]``: what a query takes of the value at its own and each earlier token."""
        return torch.bmm(self.q, self.k.mT).mul_(self.between).tril_()

    def cut(self, sequence: Tensor) -> Tensor:
        """``[B, H, S, ..]`` as ``[G, C, ..]``, in the dtype of the sums."""
        return _cut(sequence.to(self.q.dtype), self.q.shape[1])

    def join(self, chunks: Tensor, length: int) -> Tensor:
        """``[G, C, ..]`` as one sequence ``[B, H, S, ..]`` again."""
        apart = chunks.reshape(*self.rows, *chunks.shape[1:]).movedim(0, 2)
        return apart.flatten(2, 3)[:, :, :length].contiguous()


def _cut(x: Tensor, C: int) -> Tensor:
    """``[B, H, S, ..]`` as ``[G, C, ..]``, chunks first: states of chunks lie one by one so."""
    B, H, S = x.shape[:3]
    N = -(-S // C)
    if N * C > S:
        x = pad(x, (*[0, 0] * (x.dim() - 3), 0, N * C - S))
    apart = x.reshape(B, H, N, C, *x.shape[3:]).movedim(2, 0)
    return apart.reshape(N * B * H, C, *x.shape[3:])


def _pass_on(state: Tensor, added: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """The states before each chunk but the first, ``[N - 1, B, H, K, V + 1]``, and the last one."""
    added = added.view(total.shape[0], *state.shape)
    states = torch.empty_like(added[1:])
    for n, after in enumerate(states):
        torch.addcmul(added[n], state, total[n], out=after)
        state = after
    return states, torch.addcmul(added[-1], state, total[-1])


def chunk_mlstm_backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    cell: Mlstm,
) -> list[Tensor]:
    """Gradients of all operands in the dtype of the sums, as all is given here.

    ``outputs`` are h, the last state, and the states before each chunk but the first.
    """
    q, _, v, i, f, state, m = operands
    S, V = q.shape[2], v.shape[3]
    gates = cell_gates(i, f, m, cell.soft_cap, cell.stabilised)
    x = _Chunks.of(operands, gates, cell)
    before = torch.cat([state.unsqueeze(0), outputs[2]]).flatten(0, 2)
    scores, decayed_q = x.scores(), x.decayed_q
    reads = scores.sum(-1) + torch.bmm(decayed_q, before[..., V:]).squeeze(-1)
    of_y, of_m = _through_division(x, gates, cell, x.cut(grads[0]), x.cut(outputs[0]), reads)
    after, first = _pass_back(grads[1], torch.bmm(decayed_q.mT, of_y), x.total)
    flat_after = after.flatten(0, 2)
    pairs = torch.bmm(of_y, x.v.mT).mul_(x.between).tril_()
    dq = torch.bmm(pairs, x.k).addcmul_(torch.bmm(of_y, before.mT), x.from_start)
    dk = torch.bmm(pairs.mT, x.q).addcmul_(torch.bmm(x.v, flat_after.mT), x.to_end)
    dv = torch.bmm(scores.mT, of_y[..., :V]).baddbmm_(x.weighted_k, flat_after[..., :V])
    of_weight = (x.k * dk).sum(-1)
    of_sum = (x.q * dq).sum(-1) - of_weight
    # The decays of a chunk also lead to the state after it.
    reached = torch.cat([outputs[2], outputs[1].unsqueeze(0)])
    of_sum[:, -1] += (after * reached).sum((-2, -1)).flatten()
    of_decay = of_sum.flip(1).cumsum(1).flip(1)
    joined = (x.join(part, S) for part in (dq, dk, dv, of_decay, of_weight))
    dq, dk, dv, of_decay, of_weight = joined
    if of_m is not None:
        of_m = x.join(of_m, S)
        of_m[:, :, -1] += grads[2] - (outputs[1] * grads[1]).sum((-2, -1))
    di, df, dm = gate_grads(gates, cell.soft_cap, (i, f), of_decay, of_weight, of_m)
    return [dq, dk, dv, di, df, first, dm if of_m is not None else grads[2]]


def _through_division(
    x: _Chunks, gates: Gates, cell: Mlstm, grad: Tensor, h: Tensor, reads: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Gradients of what is divided and of ``n . q`` beside it, ``[G, C, V + 1]``, and of m.

    m enters h by eps alone: the gradient ``[G, C]`` is of m_t with all that it enters, the next
    decay too. Were eps 0, multiplying by exp(-m) would cancel in the division.
    """
    if not cell.normalize:
        return pad(grad, (0, 1)), None
    below, floor = divisor(reads, None if gates.m is None else x.cut(gates.m), cell.eps)
    along = (grad * h).sum(-1) / below
    above = reads.abs() > (1.0 if floor is None else floor)
    of_reads = torch.where(above, -along * reads.sign(), 0.0)
    of_y = torch.cat([grad / below.unsqueeze(-1), of_reads.unsqueeze(-1)], -1)
    return of_y, None if floor is None else along * -cell.eps


def _pass_back(last: Tensor, added: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the state after each chunk, and the one of the state before the first."""
    added = added.view(total.shape[0], *last.shape)
    after = torch.empty_like(added)
    after[-1] = last
    for n in range(total.shape[0] - 1, 0, -1):
        torch.addcmul(added[n], after[n], total[n], out=after[n - 1])
    return after, torch.addcmul(added[0], after[0], total[0])
