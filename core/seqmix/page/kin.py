"""Which rows of one module came from which rows of another, by result and by location."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from seqmix.page.listing import Row, Side, chain_of
from seqmix_ir.graph import Op

__all__ = ["trace"]

Rows = tuple[int, ...]


def trace(before: Side, after: Side) -> dict[int, Rows]:
    """Row of ``after`` -> the rows of ``before`` that it came from; rows of unknown origin lack.

    An op that still gives the very same value has one origin. Otherwise the nearest location of
    its chain that stands on the other side decides: the same object if there is one (several ops
    share a source line), else the same text. Among several ops at that place it is those whose
    name the step from there (``attention.direct``), or the op itself, repeats. Inputs and outputs
    of a graph belong together by name.
    """
    index = _Index(before)
    ends = _ends(before)
    found: dict[int, Rows] = {
        mine: (ends[key],) for key, mine in _ends(after).items() if key in ends
    }
    for row in after.ops():
        if row.op is not None and (origins := index.origins(row.op)):
            found[row.index] = origins
    return found


class _Index:
    """The ops of a side by everything that a descendant may have kept."""

    def __init__(self, side: Side) -> None:
        self._by_value: dict[int, int] = {}
        self._by_place: defaultdict[Hashable, list[Row]] = defaultdict(list)
        for row in side.ops():
            if row.op is None:
                continue
            self._by_value.update((id(value), row.index) for value in row.op.results)
            self._by_place[id(row.op.loc)].append(row)
            self._by_place[row.chain].append(row)

    def origins(self, op: Op) -> Rows:
        """The rows that an op of the other side came from."""
        for value in op.results:
            if (same := self._by_value.get(id(value))) is not None:
                return (same,)
        chain = chain_of(op.loc)
        step = op.name
        for at, loc in enumerate(chain):
            texts = tuple(place.text for place in chain[at:])
            if rows := self._by_place.get(id(loc)) or self._by_place.get(texts):
                return _named(rows, step.split(".")[0])
            step = loc.text
        return ()


def _ends(side: Side) -> dict[tuple[str, str, str], int]:
    """The inputs and outputs of every graph."""
    return {
        (graph.name, row.kind, row.name): row.index
        for graph in side.graphs
        for row in graph.rows
        if row.kind != "op"
    }


def _named(rows: Sequence[Row], name: str) -> Rows:
    same = tuple(row.index for row in rows if row.name == name)
    return same or tuple(row.index for row in rows)
