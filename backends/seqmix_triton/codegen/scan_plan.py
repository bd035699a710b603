"""Which axes of a scan's carries run in parallel, and where every result lies along them.

An axis of the carries is parallel when every element of a result reads the carries at its own place
along that axis: batch and heads as a rule, all axes of a cell without products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seqmix_ir.builder import Builder
from seqmix_ir.dims import Size
from seqmix_ir.graph import Block, Op, Value
from seqmix_ir.passes.group_index import At, Axis, axes_of, of_axis
from seqmix_ir.passes.group_pull import is_layout, is_pointwise
from seqmix_ir.passes.rewrite import rewrite_block
from seqmix_ir.types import FLOATS
from seqmix_triton.codegen.expressions import missing
from seqmix_triton.codegen.scan_reads import PRODUCTS, NotALoopError, Reads

__all__ = ["ScanPlan", "plan_scan"]

_COMPOSITE = ("layer_norm", "rms_norm", "softmax")
_MOST_HELD = 1 << 14
"""Elements of one carry that a program keeps in registers."""


@dataclass(frozen=True)
class ScanPlan:
    """A body in simple ops, its parallel axes, and the place of every result.

    ``tiled`` is the parallel axis along which a program takes several places: one along which
    products share their matrix, or the last one where nothing else is wide.
    """

    body: Block
    carries: int
    sequences: int
    axis: int
    reverse: bool
    length: Size
    parallel: tuple[Axis, ...]
    places: tuple[At, ...]
    tiled: Axis | None
    shares: bool
    """Whether products share a matrix along ``tiled``."""


def plan_scan(op: Op) -> ScanPlan:
    """The plan of a scan; NotALoopError with the reason where its body is no kernel."""
    if op.body is None:
        raise NotALoopError("it has no body")
    has = op.defn.attributes()
    body = rewrite_block(op.body, [_written_out])
    _check_ops(body)
    count = has["carries"]
    if not count:
        raise NotALoopError("it has no carries, so that its steps are no loop")
    wanted = list(range(min(p.type.rank for p in body.params[:count])))
    shapes = [p.type.shape for p in body.params[:count]]
    candidates = [j for j in wanted if all(s[j] == shapes[0][j] for s in shapes)]
    axes, places = _settle(body, count, candidates)
    first = op.operands[count]
    length = 1 if first is None else first.type.shape[has["axis"]]
    tiled, shares = _tiled(body, count, axes, places)
    return ScanPlan(
        body, count, has["sequences"], has["axis"], has["reverse"], length,
        tuple(axes.values()), places, tiled, shares,
    )  # fmt: skip


def _written_out(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """Norms and softmax in simpler ops."""
    if op.name not in _COMPOSITE:
        return None
    return tuple(op.defn.decompositions()["direct"](b, op))


def _check_ops(body: Block) -> None:
    for op in body.ops:
        if is_layout(op):
            continue
        if op.name in PRODUCTS:
            if op.results[0].type.dtype not in FLOATS:
                raise NotALoopError(f"'{op.name}' of {op.results[0].type} is no product of floats")
        elif op.name != "reduce" and not is_pointwise(op):
            raise NotALoopError(f"a loop's kernel has no '{op.name}'")
        elif (reason := missing(op)) is not None:
            raise NotALoopError(reason)


def _settle(
    body: Block, count: int, candidates: Sequence[int]
) -> tuple[dict[int, Axis], tuple[At, ...]]:
    """The parallel axes by position in the carries, and the places of the results."""
    makers = {r: o for o in body.ops for r in o.results}
    carries = {p: i for i, p in enumerate(body.params[:count])}
    kept = list(candidates)
    while True:
        axes = {j: Axis(f"p{j}", body.params[0].type.shape[j]) for j in kept}
        places, broken = _places(body, makers, carries, axes)
        if not broken:
            _check_sizes(body, count, axes, places)
            return axes, places
        kept = [j for j in kept if j not in broken]


def _places(
    body: Block,
    makers: Mapping[Value, Op],
    carries: Mapping[Value, int],
    axes: Mapping[int, Axis],
) -> tuple[tuple[At, ...], set[int]]:
    places, broken = [], set()
    for number, value in enumerate(body.results):
        own = {j: j for j in axes}
        if number >= len(carries):
            found = _spread(value, makers, carries, axes)
            broken |= set(axes) - set(found)
            own = found
        at = _place(value, {m: axes[j] for j, m in own.items()})
        reads = Reads(makers, carries)
        reads.visit(value, at)
        for carry, where in reads.of_carries:
            for j, axis in axes.items():
                if carry.type.shape[j] != 1 and where[j].axis() != axis:
                    broken.add(j)
        places.append(at)
    return tuple(places), broken


def _spread(
    value: Value,
    makers: Mapping[Value, Op],
    carries: Mapping[Value, int],
    axes: Mapping[int, Axis],
) -> dict[int, int]:
    """For every parallel axis the axis of an output that it is; without those that are none."""
    outer = tuple(Axis(f"o{m}", size) for m, size in enumerate(value.type.shape))
    reads = Reads(makers, carries)
    reads.visit(value, tuple(map(of_axis, outer)))
    found: dict[int, int] = {}
    for j, axis in axes.items():
        if axis.size == 1:
            continue
        seen = {where[j].axis() for carry, where in reads.of_carries if carry.type.shape[j] != 1}
        options = [m for m, o in enumerate(outer) if seen == {o}]
        if not seen:
            options = [m for m, o in enumerate(outer) if o.size == axis.size and m >= j][:1]
        if options and options[0] not in found.values():
            found[j] = options[0]
    return found | {j: -1 for j, axis in axes.items() if axis.size == 1}


def _place(value: Value, parallel: Mapping[int, Axis]) -> At:
    """The place of a result: parallel axes, and for the others one axis per size."""
    counts: dict[Any, int] = {}
    at = []
    for m, size in enumerate(value.type.shape):
        axis = parallel.get(m)
        if axis is None:
            counts[size] = number = counts.get(size, 0) + 1
            axis = Axis(f"d{number - 1}", size)
        at.append(of_axis(axis))
    return tuple(at)


def _check_sizes(body: Block, count: int, axes: Mapping[int, Axis], places: Sequence[At]) -> None:
    """NotALoopError where what a program keeps has no known size, or too large a one."""
    for value, at in zip(body.results, places, strict=True):
        total = 1
        for axis in axes_of(at):
            if axis in axes.values():
                continue
            if not isinstance(axis.size, int):
                raise NotALoopError(
                    f"an axis of {axis.size} places of {value.type} is not parallel, and its size "
                    "is not known when a kernel is compiled"
                )
            total *= axis.size
        if total > _MOST_HELD:
            raise NotALoopError(
                f"{value.type} has {total} elements per row; registers hold {_MOST_HELD}"
            )


def _tiled(
    body: Block, count: int, axes: Mapping[int, Axis], places: Sequence[At]
) -> tuple[Axis | None, bool]:
    makers = {r: o for o in body.ops for r in o.results}
    reads = Reads(makers, {p: i for i, p in enumerate(body.params[:count])})
    for value, at in zip(body.results, places, strict=True):
        reads.visit(value, at)
    for axis in axes.values():
        for _, left, right in reads.products:
            if (axis in axes_of(left)) != (axis in axes_of(right)):
                return axis, True
    wide = [a for at in places for a in axes_of(at) if a not in axes.values()]
    last = [axis for axis in axes.values() if axis.size != 1]
    return (last[-1], False) if last and not wide else (None, False)
