"""Which ops come before which while ops are joined: a graph of groups that stays without cycles."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Order"]


class Order:
    """Nodes by number, in order; joined nodes share what comes before them.

    Sets of nodes are bits of integers.
    """

    def __init__(self, inputs: Iterable[set[int]]) -> None:
        """``inputs`` gives, node by node, the earlier nodes that it reads."""
        self._before: list[int] = []
        self._group: list[int] = []
        for node, reads in enumerate(inputs):
            before = 0
            for other in reads:
                before |= 1 << other | self._before[other]
            self._before.append(before)
            self._group.append(1 << node)

    def between(self, first: int, second: int) -> bool:
        """Whether a node outside of both groups lies on a way from one to the other."""
        return self._between(first, second) or self._between(second, first)

    def join(self, first: int, second: int) -> None:
        """Make one group of two; nothing may lie between them."""
        joined = self._group[first] | self._group[second]
        before = (self._before[first] | self._before[second]) & ~joined
        for node in _bits(joined):
            self._group[node], self._before[node] = joined, before
        for node, own in enumerate(self._before):
            if own & joined:
                self._before[node] = own | before | joined

    def _between(self, first: int, second: int) -> bool:
        both = self._group[first] | self._group[second]
        passed = self._before[second] & ~both
        return any(self._before[node] & self._group[first] for node in _bits(passed))


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
