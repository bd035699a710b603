"""How many queries of a row may attend, as a function of its length, and the causal rule for it.

Sizes: B batch, S sequence, N selected queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

__all__ = ["Budget", "BudgetKind", "greedy", "packed"]

BudgetKind: TypeAlias = Literal["sqrt", "linear", "constant"]

_LARGEST = 10_000
"""The numerator of a factor: its square times 2**24 tokens is an integer that float64 holds."""
_FINEST = 1_000_000
"""The denominator of a factor."""


@dataclass(frozen=True)
class Budget:
    """``k(n) = ceil(c * sqrt(n))``, ``ceil(c * n)`` or ``ceil(c)`` of the first n tokens of a row.

    c is ``factor``, rounded to a fraction of about four digits. All in integers: a row of n tokens
    has the same budget on every backend and in every dtype, and the sizes of a graph can be
    computed from it. Factors are 0.0001 to 10000, lengths at most 2**24.
    """

    kind: BudgetKind
    factor: float

    def of(self, count: Tensor) -> Tensor:
        """``k(n)`` for every n of an int64 tensor."""
        above, below = self._fraction
        if self.kind == "constant":
            return torch.full_like(count, -(-above // below))
        scaled = count * above
        if self.kind == "sqrt":
            # Exact: float64 holds the number, and its root is the nearest one.
            scaled = (scaled * above).to(torch.float64).sqrt().ceil().to(torch.int64)
        most: Tensor = _divided_up(scaled, below)
        return most

    def rows(self, new: Any, total: Any) -> Any:
        """The most of ``new`` tokens that may be selected when the row has ``total`` after them.

        Both are sizes, 1 or more and maybe symbolic, and so is the result.
        """
        above, below = self._fraction
        if self.kind == "constant":
            return _least(new, -(-above // below))
        scaled = total * above
        if self.kind == "sqrt":
            scaled = _root(scaled * above - 1) + 1
        return _least(new, _divided_up(scaled, below))

    @property
    def _fraction(self) -> tuple[int, int]:
        """Numerator and denominator of c."""
        digits = min(_FINEST, max(1, int(_LARGEST / self.factor)))
        found = Fraction(str(self.factor)).limit_denominator(digits)
        return found.numerator, found.denominator


def greedy(wanted: Tensor, before: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """Which of the ``wanted [B, S]`` are taken, first come first served, and how many in all.

    Token t is taken when fewer than ``most[t]`` are before it, of which ``before`` (int64 ``[B]``)
    lie in the past; ``most`` (int64 ``[B, S]``) never falls. So the count after t is
    ``c[t] = min(c[t-1] + wanted[t], most[t])``, a (min, +) recurrence, which a running sum and a
    running minimum solve exactly.
    """
    asked = wanted.to(torch.int64).cumsum(1)
    limit = (most - asked).cummin(1).values
    count = asked + torch.minimum(limit, before.unsqueeze(1))
    earlier = torch.cat([before.unsqueeze(1), count[:, :-1]], dim=1)
    return count > earlier, count[:, -1]


def packed(taken: Tensor, rows: Any) -> Tensor:
    """The indices of the true entries of ``taken [B, S]`` in order, then -1: int64 ``[B, N]``.

    ``rows`` is N, at least the largest number of them in a row.
    """
    count = taken.to(torch.int64).cumsum(1)
    # What is not taken goes to a slot behind the last one, which is cut off again.
    slot = torch.where(taken, count - 1, rows)
    index = torch.arange(taken.shape[1], device=taken.device).expand_as(slot)
    empty = torch.full((taken.shape[0], rows + 1), -1, dtype=torch.int64, device=taken.device)
    return empty.scatter(1, slot, index)[:, :rows]


def _divided_up(size: Any, by: int) -> Any:
    return size if by == 1 else (size + (by - 1)) // by


def _root(size: Any) -> Any:
    """That of a size, rounded down."""
    return math.isqrt(size) if isinstance(size, int) else math.floor(torch.sym_sqrt(size))


def _least(*sizes: Any) -> Any:
    smallest: Any = torch.sym_min  # torch does not annotate it.
    return smallest(*sizes)
