"""A whole ``scan`` as one kernel: the loop over time inside, the body's kernels in it.

The carries live in the memory of the results. Axes of the carries that the body keeps apart, batch
and heads as a rule, are loops around the one over time, and these run in parallel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from seqmix.errors import BackendError
from seqmix_ir.dims import Size, ceildiv
from seqmix_ir.graph import Op, Value
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.frame import Frame
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.kernels.loop_plan import Axis, Loop, planned_loop, scan_scratch
from seqmix_tvm.kernels.passes import Pass, write_pass
from seqmix_tvm.kernels.step_product import panel_place, shares_matrix, step_product
from seqmix_tvm.place import Index, Place, present
from seqmix_tvm.rules import RULES
from seqmix_tvm.rules.layout import FLAT

__all__ = ["Fixed", "fixed_axes", "memory_of", "scan", "scan_scratch", "step_slice"]

_ROWS = 4
"""Rows of a batch that are stepped together where they share a matrix."""

Fixed: TypeAlias = "dict[Value, dict[int, Any]]"
"""Per value, the axes that a loop around the body runs over, and where it is."""


def scan(kernel: Kernel, op: Op) -> None:
    """Start the carries, then step through the sequences."""
    loop, carries = planned_loop(op), op.defn.attributes()["carries"]
    for given, last in zip(op.operands[:carries], op.results[:carries], strict=True):
        _copy(kernel, given, last)
    for param, memory in zip(loop.panels, _split(kernel, loop)[1], strict=True):
        given = present(op.operands[loop.body.params.index(param)])
        _lay(kernel, given, memory)
    if loop.shared is not None and loop.shared.size != 1:
        _blocks(kernel, op, loop, loop.shared)
        return

    def run(counters: tuple[Any, ...]) -> None:
        fixed = fixed_axes(zip(loop.axes, counters, strict=True))
        _Steps(kernel, op, loop, [fixed]).run()

    kernel.rows(tuple(axis.size for axis in loop.axes), run, 1 << 12, 1)


def _blocks(kernel: Kernel, op: Op, loop: Loop, shared: Axis) -> None:
    """Blocks of rows along the axis that shares matrices, then the rows that are left."""
    writer, rows = kernel.writer, kernel.sizes(shared.size)
    blocks = ceildiv(shared.size, _ROWS)
    others = tuple(axis for axis in loop.axes if axis is not shared)

    def run(counters: tuple[Any, ...]) -> None:
        *outer, block = counters
        first = writer.bind(block * tvm.integer(_ROWS), "first")
        left = writer.bind(rows - first, "left")

        def steps(at: Sequence[Any]) -> None:
            around = list(zip(others, outer, strict=True))
            _Steps(kernel, op, loop, [fixed_axes([*around, (shared, row)]) for row in at]).run()

        def single() -> None:
            with writer.loop(left, name="r") as r:
                steps([first + r])

        def whole() -> None:
            steps([first + tvm.integer(r) for r in range(_ROWS)])

        if isinstance(shared.size, int) and shared.size < _ROWS:
            single()
        else:
            writer.choose(left >= tvm.integer(_ROWS), whole, single)

    kernel.rows((*(axis.size for axis in others), blocks), run, 1 << 12, 1)


def fixed_axes(pairs: Iterable[tuple[Axis, Any]]) -> Fixed:
    """Per value of a body, the axes that loops around it run over, from axes and counters."""
    fixed: Fixed = {}
    for axis, counter in pairs:
        for value, place in axis.places.items():
            if place is not None:
                fixed.setdefault(value, {})[place] = counter
    return fixed


def _split(kernel: Kernel, loop: Loop) -> tuple[list[Place], list[Place], list[Place]]:
    """The scratch memory for what a step stores, for panels, and for loops inside."""
    first = len(loop.scratch)
    second = first + len(loop.panels)
    places = list(kernel.scratch)
    return places[:first], places[first:second], places[second:]


def _lay(kernel: Kernel, matrix: Value, memory: Place) -> None:
    """Write a matrix in panels."""
    place = panel_place(memory)

    def put(index: Index) -> None:
        element = kernel.frame.at(matrix, index)
        kernel.writer.store(place.buffer, place.where(index), place.stored(element))

    kernel.spread(matrix.type.shape, put, kernel.held(matrix), cost=1)


def _copy(kernel: Kernel, given: Value | None, last: Value) -> None:
    def put(index: Index) -> None:
        kernel.frame.save(last, index, kernel.frame.at(given, index))

    kernel.spread(last.type.shape, put, cost=1)


@dataclass
class _Steps:
    """The loop over time for one row of the independent axes, or for several side by side."""

    kernel: Kernel
    op: Op
    loop: Loop
    rows: Sequence[Fixed]

    def run(self) -> None:
        """All steps; the carries lie in the memory of the results."""
        has, writer, first = self.op.defn.attributes(), self.kernel.writer, self._carries
        sequence = present(self.op.operands[first])
        length = self.kernel.sizes(sequence.type.shape[has["axis"]])
        with writer.loop(length, name="t") as step:
            t = length - tvm.integer(1) - step if has["reverse"] else step
            frame = self._frame(writer.bind(t, "now"))
            spare = _split(self.kernel, self.loop)[2]
            for this in self.loop.passes:
                root = this.groups[-1].root
                count = len(scan_scratch(root)) if root.name == "scan" else 0
                own, spare = spare[:count], spare[count:]
                self._pass(frame, this, own)
            self._advance(frame)

    @property
    def _carries(self) -> int:
        return int(self.op.defn.attributes()["carries"])

    def _frame(self, t: Any) -> Frame:
        """Where the values of the body lie in step ``t``."""
        has, outer, op, body = (
            self.op.defn.attributes(),
            self.kernel.frame,
            self.op,
            self.loop.body,
        )
        first, second = self._carries, self._carries + has["sequences"]
        ops = {r: o for o in body.ops for r in o.results}
        frame = Frame(self.kernel.writer, self.kernel.sizes, RULES, ops)
        for i, (param, given) in enumerate(zip(body.params, op.operands, strict=True)):
            operand = present(given)
            if i < first:
                frame.places[param] = outer.places[op.results[i]]
                continue
            place = memory_of(outer, operand)
            sliced = step_slice(place, operand.type.shape, has["axis"], t)
            frame.places[param] = sliced if i < second else place
        for result, stacked in zip(body.results[first:], op.results[first:], strict=True):
            place = outer.places[stacked]
            frame.places[result] = step_slice(place, stacked.type.shape, has["axis"], t)
        scratch, laid, _ = _split(self.kernel, self.loop)
        frame.places.update(zip(self.loop.scratch, scratch, strict=True))
        frame.places.update(zip(self.loop.panels, map(panel_place, laid), strict=True))
        for result, carry in self.loop.in_place.items():
            frame.places[result] = frame.places[carry]
        return frame

    def _pass(self, frame: Frame, this: Pass, scratch: Sequence[Place]) -> None:
        writer, group = self.kernel.writer, this.whole if this.fused else this.groups[0]

        def inner(fixed: Fixed) -> Kernel:
            return self.kernel.inside(frame, group, fixed, scratch)

        with writer.block() as statements:
            anchor = group.anchor
            rows = [inner(fixed) for fixed in self.rows]
            if anchor is None or not self._together(anchor) or not step_product(rows, anchor):
                self._each_row(lambda fixed: _write(inner(fixed), this))
        writer.emit(tvm.block(statements))

    def _together(self, op: Op) -> bool:
        """Whether an op is a product that takes in all rows at once."""
        if len(self.rows) == 1:
            return op.name == "matmul"
        shared = self.loop.shared
        return shared is not None and shares_matrix(op, shared.places)

    def _each_row(self, body: Callable[[Fixed], None]) -> None:
        """What ``body`` writes for every row; it is written once."""
        if len(self.rows) == 1:
            body(self.rows[0])
            return
        with self.kernel.writer.loop(len(self.rows), name="r") as r:
            body(_moved(self.rows[0], self.rows[1], r))

    def _advance(self, frame: Frame) -> None:
        """Let the new carries be those of the next step, when all of them are there."""
        body, group = self.loop.body, self.kernel.group
        pairs = zip(body.params[: self._carries], body.results[: self._carries], strict=True)
        left = [(p, r) for p, r in pairs if r not in self.loop.in_place]

        def copies(fixed: Fixed) -> None:
            for param, result in left:
                copier = self.kernel.inside(frame, group, fixed)

                def put(index: Index, param: Value = param, result: Value = result) -> None:
                    frame.save(param, index, frame.at(result, index))

                copier.spread(param.type.shape, put, fixed.get(param, {}), cost=1)

        if left:
            self._each_row(copies)


def _moved(first: Fixed, second: Fixed, r: Any) -> Fixed:
    """The row that is ``r`` after the first; the axis on which the first two differ tells which."""
    return {
        value: {a: here if here is second[value][a] else here + r for a, here in at.items()}
        for value, at in first.items()
    }


def _write(inner: Kernel, this: Pass) -> None:
    if this.fused:
        write_pass(inner, this)
    else:
        inner.write()


def memory_of(frame: Frame, value: Value) -> Place:
    """The memory of a value that lies somewhere, perhaps under another shape."""
    while value not in frame.places:
        op = frame.made(value)
        if op.name not in FLAT:
            raise BackendError(f"{op.loc}: '{op.name}' has no place in memory")
        (value,) = op.values
    return frame.places[value]


def step_slice(place: Place, shape: tuple[Size, ...], axis: int, t: Any) -> Place:
    """The memory of one step of a sequence."""

    def where(index: Index) -> Any:
        axes = (*index.axes[:axis], t, *index.axes[axis:])
        return place.where(Index(index.sizes, shape, axes))

    return dataclasses.replace(place, where=where)
