"""What the torch kernels of a bank of state spaces share: tables of its weights, and row order.

B batch, S sequence, G state spaces, V inputs that share one of them, N complex modes; Q chunks of
C tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from seqmix.context import valid_last
from seqmix_gated_conv.state_space_forms import CHUNK

__all__ = ["Rows", "Tables", "as_complex", "as_real", "chunks", "some_spaces", "unchunked"]

# Elements of one table of powers: what is made of it then stays in a cache.
_GROUP = 1 << 16


@dataclass(frozen=True)
class Tables:
    """``powers [G, C + 1, N]`` of the decay from 0 on, and ``readout [G, N]``, complex.

    ``kernel [G, C]`` is what is read of the powers. All are rounded from float64 where decay and
    readout are that; ``wide`` is the real dtype of the sums.
    """

    powers: Tensor
    readout: Tensor
    kernel: Tensor
    wide: torch.dtype

    @classmethod
    def of(cls, decay: Tensor, readout: Tensor, x: Tensor) -> Tables:
        """Powers by doubling: from those there are and the next one, twice as many."""
        C = min(CHUNK, x.shape[1])
        step = torch.view_as_complex(decay.contiguous()).unsqueeze(1)
        powers = step.new_empty(step.shape[0], C + 1, step.shape[2])
        powers[:, 0], count = 1.0, 1
        while count <= C:
            more = min(count, C + 1 - count)
            torch.mul(powers[:, :more], step, out=powers[:, count : count + more])
            step, count = step * step, count + more
        return cls._rounded(powers, readout, x)

    @classmethod
    def restored(cls, stored: Tensor, readout: Tensor, x: Tensor) -> Tables:
        """The tables from powers as real pairs, ``[G, C + 1, N, 2]``."""
        return cls._rounded(torch.view_as_complex(stored), readout, x)

    @classmethod
    def _rounded(cls, powers: Tensor, readout: Tensor, x: Tensor) -> Tables:
        out = torch.view_as_complex(readout.contiguous())
        read = as_real(out.to(powers.dtype).conj().resolve_conj())
        kernel = torch.bmm(as_real(powers[:, :-1]), read.unsqueeze(-1)).squeeze(-1)
        wide = torch.promote_types(x.dtype, torch.float32)
        narrow = wide.to_complex()
        return cls(powers.to(narrow), out.to(narrow), kernel.to(wide), wide)

    @property
    def size(self) -> int:
        """C."""
        return self.powers.shape[1] - 1

    def toeplitz(self) -> Tensor:
        """From the inputs of a chunk to its outputs, ``[G, C, C]``: tap ``j - i`` at (i, j)."""
        C = self.size
        return pad(self.kernel, (C - 1, 0)).unfold(1, C, 1).flip(1)

    def from_start(self) -> Tensor:
        """From the state before a chunk to its outputs, ``[G, C, 2 N]``."""
        seen = self.powers[:, 1:] * self.readout.unsqueeze(1)
        return as_real(seen.conj().resolve_conj())

    def to_end(self) -> Tensor:
        """From the inputs of a chunk to the state after it, ``[G, C, 2 N]``."""
        return as_real(self.powers[:, :-1].flip(1))


class Rows:
    """Padding moves behind the tokens of its row, where it does no harm to outputs."""

    def __init__(self, valid: Tensor | None, x: Tensor) -> None:
        """``valid [B, S]`` may be None, when nothing has to move."""
        B, S = x.shape[:2]
        self._valid = valid
        self._count = torch.full((B,), S, device=x.device) if valid is None else valid.sum(1)
        if valid is not None:
            self._order, self._slot = valid_last(~valid)

    def compacted(self, x: Tensor) -> Tensor:
        """``x [B, S, V, G]`` with 0 behind the tokens of each row."""
        if self._valid is None:
            return x
        return _moved(torch.where(self._valid[:, :, None, None], x, 0.0), self._order)

    def back(self, y: Tensor) -> Tensor:
        """The inverse, with 0 at padding."""
        if self._valid is None:
            return y
        return torch.where(self._valid[:, :, None, None], _moved(y, self._slot), 0.0)

    def last_chunk(self, C: int) -> tuple[Tensor, Tensor, Tensor]:
        """Where the last token of each row stands: its chunk, and the tokens of that, ``[B]``.

        Third, the places ``[B, C]`` of the C tokens up to it, -1 for those of another chunk.
        """
        chunk = (self._count - 1).clamp(min=0) // C
        place = self._count.unsqueeze(1) + torch.arange(-C, 0, device=chunk.device)
        place = torch.where(place >= (C * chunk).unsqueeze(1), place, -1)
        return chunk, self._count - C * chunk, place


def _moved(x: Tensor, source: Tensor) -> Tensor:
    return torch.gather(x, 1, source[:, :, None, None].expand_as(x))


def some_spaces(decay: Tensor, length: int) -> Iterator[slice]:
    """The state spaces in groups whose tables and rows come from memory at hand."""
    G, N, _ = decay.shape
    step = max(1, _GROUP // (N * min(CHUNK, length)))
    return (slice(start, start + step) for start in range(0, G, step))


def as_real(x: Tensor) -> Tensor:
    """Complex ``[.., N]`` as ``[.., 2 N]``."""
    return torch.view_as_real(x).flatten(-2)


def as_complex(x: Tensor) -> Tensor:
    """The inverse of :func:`as_real`."""
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))


def chunks(x: Tensor, tables: Tables) -> Tensor:
    """``[B, S, V, G]`` as ``[G, B, V, Q, C]``, zeros behind, in the dtype of the sums."""
    B, S, V, G = x.shape
    C = tables.size
    Q = -(-S // C)
    u = x.new_empty((G, B, V, Q * C), dtype=tables.wide)
    u[..., :S] = x.permute(3, 0, 2, 1)
    u[..., S:] = 0.0
    return u.view(G, B, V, Q, C)


def unchunked(y: Tensor, length: int) -> Tensor:
    """The inverse, without what filled the last chunk."""
    return y.flatten(3)[..., :length].permute(1, 3, 2, 0)
