"""A whole ``scan`` as one kernel: the loop over time inside, the body's kernels in it.

The carries live in the memory of the results. Axes of the carries that the body keeps apart, batch
and heads as a rule, are loops around the one over time, and these run in parallel.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from seqmix.errors import BackendError
from seqmix_ir.dims import Size
from seqmix_ir.graph import Block, Op, Value
from seqmix_ir.types import TensorType
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.frame import Frame
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.kernels.follow import follow_axis
from seqmix_tvm.place import Index, Place, present
from seqmix_tvm.plan import Group, plan_block, with_copies
from seqmix_tvm.rules import RULES
from seqmix_tvm.rules.layout import FLAT

__all__ = ["scan", "scan_scratch"]


@dataclass(frozen=True, eq=False)
class _Loop:
    """A scan's body, planned: ``axes`` are where the independent axes are in each value."""

    body: Block
    groups: tuple[Group, ...]
    scratch: tuple[Value, ...]
    inner: tuple[TensorType, ...]
    axes: tuple[tuple[Size, dict[Value, int | None]], ...]


def scan_scratch(op: Op) -> list[TensorType]:
    """Tensors for what the body stores within a step."""
    loop = _planned(op)
    return [*(v.type for v in loop.scratch), *loop.inner]


@lru_cache(maxsize=64)
def _planned(op: Op) -> _Loop:
    if op.body is None:
        raise BackendError(f"{op.loc}: a scan lacks its body")
    carries = op.defn.attributes()["carries"]
    body = with_copies(op.body)
    groups = tuple(plan_block(body))
    outputs = set(body.results[carries:])
    scratch = tuple(r for g in groups for r in g.results if r not in outputs)
    inner = tuple(t for g in groups if g.root.name == "scan" for t in scan_scratch(g.root))
    axes = []
    rank = body.params[0].type.rank if carries else 0
    for axis in range(max(rank - 1, 0)):
        size = body.params[0].type.shape[axis]
        found = None if size == 1 else follow_axis(body, carries, axis)
        if found is not None:
            axes.append((size, found))
    return _Loop(body, groups, scratch, inner, tuple(axes))


def scan(kernel: Kernel, op: Op) -> None:
    """Start the carries, then step through the sequences."""
    loop, has = _planned(op), op.defn.attributes()
    carries = has["carries"]
    for given, last in zip(op.operands[:carries], op.results[:carries], strict=True):
        _copy(kernel, given, last)
    sizes = tuple(size for size, _ in loop.axes)

    def run(counters: tuple[Any, ...]) -> None:
        fixed: dict[Value, dict[int, Any]] = {}
        for (_, found), counter in zip(loop.axes, counters, strict=True):
            for value, place in found.items():
                if place is not None:
                    fixed.setdefault(value, {})[place] = counter
        _steps(kernel, op, loop, fixed)

    kernel.rows(sizes, run, 1 << 12, 1)


def _copy(kernel: Kernel, given: Value | None, last: Value) -> None:
    def put(index: Index) -> None:
        kernel.frame.save(last, index, kernel.frame.at(given, index))

    kernel.spread(last.type.shape, put, cost=1)


def _steps(kernel: Kernel, op: Op, loop: _Loop, fixed: dict[Value, dict[int, Any]]) -> None:
    has, writer = op.defn.attributes(), kernel.writer
    first, second = has["carries"], has["carries"] + has["sequences"]
    length = kernel.sizes(present(op.operands[first]).type.shape[has["axis"]])
    with writer.loop(length, name="t") as step:
        t = length - tvm.integer(1) - step if has["reverse"] else step
        t = writer.bind(t, "now")
        ops = {r: o for o in loop.body.ops for r in o.results}
        frame = Frame(writer, kernel.sizes, RULES, ops)
        for i, (param, given) in enumerate(zip(loop.body.params, op.operands, strict=True)):
            operand = present(given)
            if i < first:
                frame.places[param] = kernel.frame.places[op.results[i]]
            else:
                place = _memory(kernel.frame, operand)
                sliced = _slice(place, operand.type.shape, has["axis"], t)
                frame.places[param] = sliced if i < second else place
        for result, stacked in zip(loop.body.results[first:], op.results[first:], strict=True):
            place = kernel.frame.places[stacked]
            frame.places[result] = _slice(place, stacked.type.shape, has["axis"], t)
        frame.places.update(zip(loop.scratch, kernel.scratch, strict=False))
        spare = list(kernel.scratch[len(loop.scratch) :])
        for group in loop.groups:
            count = len(scan_scratch(group.root)) if group.root.name == "scan" else 0
            own, spare = spare[:count], spare[count:]
            _write(Kernel(writer, frame, group, fixed, serial=True, scratch=own))
        _advance(kernel, frame, loop, first, fixed)


def _write(inner: Kernel) -> None:
    # Kernels of a body may be scans again.
    from seqmix_tvm.kernels import write_kernel

    with inner.writer.block() as statements:
        write_kernel(inner)
    inner.writer.emit(tvm.block(statements))


def _advance(
    kernel: Kernel, frame: Frame, loop: _Loop, carries: int, fixed: dict[Value, dict[int, Any]]
) -> None:
    """Let the new carries be those of the next step, when all of them are there."""
    group = kernel.group
    for param, result in zip(loop.body.params[:carries], loop.body.results[:carries], strict=True):
        copier = Kernel(kernel.writer, frame, group, fixed, serial=True)

        def put(index: Index, param: Value = param, result: Value = result) -> None:
            frame.save(param, index, frame.at(result, index))

        copier.spread(param.type.shape, put, fixed.get(param, {}), cost=1)


def _memory(frame: Frame, value: Value) -> Place:
    """The memory of a value that lies somewhere, perhaps under another shape."""
    while value not in frame.places:
        op = frame.made(value)
        if op.name not in FLAT:
            raise BackendError(f"{op.loc}: '{op.name}' has no place in memory")
        (value,) = op.values
    return frame.places[value]


def _slice(place: Place, shape: tuple[Size, ...], axis: int, t: Any) -> Place:
    """The memory of one step of a sequence."""

    def where(index: Index) -> Any:
        axes = (*index.axes[:axis], t, *index.axes[axis:])
        return place.where(Index(index.sizes, shape, axes))

    return dataclasses.replace(place, where=where)
