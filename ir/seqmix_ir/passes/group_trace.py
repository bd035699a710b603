"""What one pass over rows computes: every value at every place that the outputs ask for.

A pass runs over rows (the ``lead`` sizes) and, in each of them, over columns. An output is
``[*lead, C]`` or ``[*lead]``. Rows may be reduced, so that a reduction must be asked for by row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from seqmix_ir.dims import Dim, Size, show_size
from seqmix_ir.graph import Op, Value
from seqmix_ir.passes.group_index import (
    At,
    Axis,
    Looked,
    always,
    atoms_of,
    never,
    of_axis,
    regrouped,
)
from seqmix_ir.passes.group_pull import (
    broadcast_at,
    follow,
    is_layout,
    is_pointwise,
    parts_of,
    reduced_at,
)

__all__ = [
    "CHEAP",
    "Trace",
    "UnmappableError",
    "column_axis",
    "output_at",
    "row_axes",
    "row_lengths",
    "trace",
]

CHEAP = frozenset(
    {
        "abs", "add", "and", "cast", "ceil", "clip_gradient", "equal", "floor", "greater",
        "greater_equal", "less", "less_equal", "maximum", "minimum", "mul", "neg", "not",
        "not_equal", "or", "relu", "round", "sign", "sub", "where",
    }
)  # fmt: skip
"""Ops of an instruction or two: computing one again costs less than memory."""


class UnmappableError(Exception):
    """Why some ops are no one pass over rows; never seen by users."""


def row_lengths(ops: Iterable[Op]) -> tuple[Size, ...]:
    """The lengths of the rows that these ops reduce."""
    return tuple(dict.fromkeys(o.values[0].type.shape[-1] for o in ops if o.name == "reduce"))


@dataclass
class Trace:
    """What a pass reads and computes; ``repeated`` are cheap ops that are computed again."""

    leaves: dict[Value, list[At]] = field(default_factory=dict)
    computed: dict[Op, list[At]] = field(default_factory=dict)
    repeated: dict[Op, int] = field(default_factory=dict)
    mapped: set[Op] = field(default_factory=set)
    """Layout ops that were passed."""


def row_axes(lead: tuple[Size, ...]) -> tuple[Axis, ...]:
    """The axes of the rows."""
    return tuple(Axis(f"r{i}", size) for i, size in enumerate(lead))


def column_axis(size: Size) -> Axis:
    """The axis along a row of ``size`` elements."""
    return Axis("column", size)


def output_at(value: Value, lead: tuple[Size, ...], columns: Iterable[Size] = ()) -> At:
    """Where an output is in a pass over ``lead``.

    It may also be rows of one of ``columns`` under another shape, heads side by side for example.
    UnmappableError where it has any other shape.
    """
    shape, rows = value.type.shape, tuple(map(of_axis, row_axes(lead)))
    if shape == lead:
        return rows
    if shape and shape[:-1] == lead:
        return (*rows, of_axis(column_axis(shape[-1])))
    count = math.prod(shape, start=1)
    for size in columns:
        if math.prod(lead, start=size) == count:
            return regrouped((*rows, of_axis(column_axis(size))), (*lead, size), shape)
    over = ", ".join(map(show_size, lead))
    raise UnmappableError(f"{value.type} is no row of a pass over [{over}]")


def trace(
    inside: Mapping[Value, Op],
    outputs: Iterable[Value],
    lead: tuple[Size, ...],
    *,
    check: bool = True,
) -> Trace:
    """Follow the outputs back to values that ``inside`` does not make.

    Raises UnmappableError where an op cannot be computed by rows, or would be computed twice
    though it is dear (``check``).
    """
    walk = _Walk(inside)
    columns = row_lengths(inside.values())
    for value in outputs:
        walk.visit(value, output_at(value, lead, columns))
    rows = math.prod(lead, start=1)
    for op, places in walk.trace.computed.items() if check else ():
        _check_cost(op, places, rows, walk.trace)
    return walk.trace


class _Walk:
    def __init__(self, inside: Mapping[Value, Op]) -> None:
        self.trace = Trace()
        self._inside = inside
        self._seen: set[tuple[Value, At]] = set()

    def visit(self, value: Value, at: At) -> None:
        follow(value, at, self._reads, self._seen)

    def _reads(self, value: Value, at: At) -> list[tuple[Value, At]]:
        op = self._inside.get(value)
        looked = [(a.value, a.at) for i in at for a in atoms_of(i) if isinstance(a, Looked)]
        if op is None:
            self.trace.leaves.setdefault(value, []).append(at)
            return looked
        if is_layout(op):
            self.trace.mapped.add(op)
            return looked + self._layout(op, at)
        self.trace.computed.setdefault(op, []).append(at)
        if is_pointwise(op):
            present = [v for v in op.operands if v is not None]
            return [(v, broadcast_at(at, v)) for v in present]
        return [self._reduction(op, at)]

    def _layout(self, op: Op, at: At) -> list[tuple[Value, At]]:
        if not op.operands:
            return []
        found = []
        for part in parts_of(op, at):
            if part.value is None or any(map(never, part.conditions)):
                continue
            found.append((part.value, part.at))
            if all(map(always, part.conditions)):
                break
        return found

    def _reduction(self, op: Op, at: At) -> tuple[Value, At]:
        if any(isinstance(a, Axis) and a.name == "column" for i in at for a in atoms_of(i)):
            raise UnmappableError(f"the '{op.name}' of a row is needed across rows")
        (x,) = op.values
        return x, reduced_at(op, at, of_axis(column_axis(x.type.shape[-1])))


def _check_cost(op: Op, places: list[At], rows: Size, found: Trace) -> None:
    """UnmappableError where an op that is not cheap is computed for more elements than it has."""
    computed: Size = 0
    for at in places:
        atoms = {a for i in at for a in atoms_of(i) if isinstance(a, Axis)}
        columns = [a.size for a in atoms if a.name == "column"]
        computed = computed + math.prod(columns, start=rows)
    own: Size = math.prod(op.results[0].type.shape, start=1)
    if _not_more(computed, own):
        return
    if op.name not in CHEAP:
        raise UnmappableError(
            f"'{op.name}' of {op.results[0].type} would be computed again and again"
        )
    found.repeated[op] = len(places)


def _not_more(size: Size, than: Size) -> bool:
    gap = than - size
    return gap >= 0 if isinstance(gap, int) else _all_positive(gap)


def _all_positive(size: Dim) -> bool:
    return all(coefficient >= 0 for _, coefficient in size.terms)
