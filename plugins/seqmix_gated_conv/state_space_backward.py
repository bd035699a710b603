"""The backward pass of a bank of diagonal state spaces: the same products the other way round.

B batch, S sequence, G state spaces, V inputs that share one of them, N complex modes; Q chunks of
C tokens. The gradient of a complex tensor is that of its real part plus i times that of its
imaginary part, as torch has it: ``z = a b`` gives ``dz conj(b)`` to a.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from seqmix_gated_conv.state_space_tables import (
    Rows,
    Tables,
    as_complex,
    as_real,
    chunks,
    some_spaces,
    unchunked,
)

__all__ = ["state_space_backward"]


def state_space_backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor | None, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
) -> list[Tensor | None]:
    """Gradients of x, decay, readout and state; ``outputs`` end with states and powers."""
    x, decay, readout, state, valid = operands
    if x is None or decay is None or readout is None or state is None:
        raise TypeError("state_space: x, decay, readout and state are needed")
    if valid is not None and bool(valid.all()):
        valid = None
    rows = Rows(valid, x)
    tokens, out = rows.compacted(x), rows.compacted(grads[0])
    dx, first = torch.empty_like(out), torch.empty_like(state)
    d_decay, d_readout = torch.empty_like(decay), torch.empty_like(readout)
    before, wide = torch.view_as_complex(outputs[2]), outputs[2].dtype
    for part in some_spaces(decay, x.shape[1]):
        tables = Tables.restored(outputs[3][part], readout[part], x)
        u, dy = (chunks(t[..., part], tables) for t in (tokens, out))
        last = torch.view_as_complex(grads[1][:, part].to(wide).contiguous())
        back = _Back(u, dy, before[part], last, rows, tables)
        first[:, part] = torch.view_as_real(back.states[:, :, :, 0].transpose(0, 1))
        if needs[0]:
            dx[..., part] = unchunked(back.inputs(), x.shape[1])
        if needs[1] or needs[2]:
            d_decay[part], d_readout[part] = back.weights()
    return [rows.back(dx), d_decay, d_readout, first, None]


class _Back:
    """What the gradients of y ``[G, B, V, Q, C]`` and of the last state ``[B, G, V, N]`` give.

    ``states [G, B, V, Q, N]`` are the gradients of the states before the chunks.
    """

    def __init__(
        self, u: Tensor, dy: Tensor, before: Tensor, last: Tensor, rows: Rows, tables: Tables
    ) -> None:
        self._u, self._dy, self._before, self._tables = u, dy, before, tables
        self._last = last.transpose(0, 1)
        self._chunk, self._steps, self._place = rows.last_chunk(tables.size)
        self._row = torch.arange(len(self._chunk), device=u.device)
        self._end, self._start = tables.to_end(), tables.from_start()
        self.states = self._of_states(last)

    def _of_states(self, last: Tensor) -> Tensor:
        """From behind: what a state gives to its chunk, and to the state after that."""
        G, B, V, Q, _ = self._u.shape
        g = as_complex(torch.bmm(self._dy.flatten(1, 3), self._start)).view(G, B, V, Q, -1)
        decay = self._tables.powers[:, self._steps].transpose(0, 1).unsqueeze(2)
        g[:, self._row, :, self._chunk] += last * decay.conj()
        whole = self._tables.powers[:, -1, None, None].conj().resolve_conj()
        for q in range(Q - 2, -1, -1):
            g[:, :, :, q] = torch.addcmul(g[:, :, :, q], g[:, :, :, q + 1], whole)
        return g

    def inputs(self) -> Tensor:
        """The gradient of u."""
        u, end = self._u, self._end.mT
        G, C = u.shape[0], u.shape[4]
        du = torch.bmm(self._dy.flatten(1, 3), self._tables.toeplitz().mT).view(u.shape)
        added = torch.bmm(self._added(), end)
        du[:, :, :, :-1] += added.view(*u.shape[:3], -1, C)
        window = torch.bmm(as_real(self._last.resolve_conj()).reshape(G, -1, end.shape[1]), end)
        window = window.view(*u.shape[:3], C).masked_fill((self._place < 0)[None, :, None], 0.0)
        du.view(*u.shape[:3], -1).scatter_add_(3, self._index(), window)
        return du

    def weights(self) -> tuple[Tensor, Tensor]:
        """The gradients of decay and readout, as real pairs."""
        tables = self._tables
        powers, out = tables.powers, tables.readout
        seen = self._of_seen()
        d_powers = seen * out.conj().unsqueeze(1)
        d_powers[:, :-1] += as_complex(self._of_end()).flip(1)
        before, after = self._before[:, :, :, :-1], self.states[:, :, :, 1:]
        d_powers[:, -1] += (before.conj() * after).sum((1, 2, 3))
        start = self._before[:, self._row, :, self._chunk].transpose(0, 1)
        decays = (start.conj() * self._last).sum(2)
        d_powers.index_add_(1, self._steps, decays)
        count = torch.arange(1, powers.shape[1], device=powers.device).unsqueeze(1)
        d_decay = (powers[:, :-1].conj() * d_powers[:, 1:] * count).sum(1)
        return torch.view_as_real(d_decay), torch.view_as_real((powers.conj() * seen).sum(1))

    def _added(self) -> Tensor:
        """The gradient of what each chunk but the last adds to the state, ``[G, -1, 2 N]``."""
        after = as_real(self.states[:, :, :, 1:].contiguous())
        return after.reshape(len(after), -1, after.shape[-1])

    def _of_end(self) -> Tensor:
        """The gradient of the table that leads from inputs to the state behind, ``[G, C, 2 N]``."""
        u, added = self._u, self._added()
        window = u.flatten(3).gather(3, self._index())
        window.masked_fill_((self._place < 0)[None, :, None], 0.0)
        last = as_real(self._last.resolve_conj()).reshape(len(u), -1, added.shape[2])
        d_end = torch.bmm(window.flatten(1, 2).mT, last)
        earlier = u[:, :, :, :-1].reshape(len(u), -1, u.shape[4])
        return d_end.baddbmm_(earlier.mT, added)

    def _of_seen(self) -> Tensor:
        """The gradient of what is read of each power, ``[G, C + 1, N]``."""
        dy = self._dy.flatten(1, 3)
        C = dy.shape[2]
        d_start = torch.bmm(dy.mT, as_real(self._before).flatten(1, 3))
        seen = pad(as_complex(d_start).conj().resolve_conj(), (0, 0, 1, 0))
        pairs = torch.bmm(self._u.flatten(1, 3).mT, dy)
        # Row i moves i places to the left: then a column holds one tap.
        line = pad(pairs.flip(1), (0, C)).flatten(1)[:, :-C].view(-1, C, 2 * C - 1)
        seen[:, :-1] += line.sum(1)[:, C - 1 :].unsqueeze(-1)
        return seen

    def _index(self) -> Tensor:
        """The places of the last tokens for each row and input, ``[G, B, V, C]``."""
        return self._place.clamp(min=0)[None, :, None].expand(*self._u.shape[:3], -1)
