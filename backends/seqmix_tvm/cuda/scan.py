"""A whole ``scan`` as one launch: a block per index of the independent axes, time inside.

Batch and heads are independent axes as a rule. The threads of a block share the work of a step, and
wait for each other after each of its passes. What fits into shared memory stays there for all
steps: first the carries, then what passes hand on to each other, then matrices that products read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from seqmix.errors import BackendError
from seqmix_ir.graph import Op, Value
from seqmix_ir.types import TensorType
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.cuda.kernel import BlockKernel, CudaKernel
from seqmix_tvm.frame import Frame
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.kernels.loop_plan import Axis, Loop, planned_loop
from seqmix_tvm.kernels.passes import Pass, write_pass
from seqmix_tvm.kernels.scan import Fixed, fixed_axes, memory_of, step_slice
from seqmix_tvm.place import Index, Place, present, ravel
from seqmix_tvm.rules import RULES

__all__ = ["scan", "scan_scratch"]

_ROOM = 46 << 10
"""Bytes of shared memory of a block."""

_STAGING = frozenset({"attention", "linear_attention", "long_conv", "scan"})
"""Ops that need shared memory themselves, and are rare in bodies."""

_FEWEST, _MOST = 4, 16
"""Warps of a block."""


def scan_scratch(op: Op) -> list[TensorType]:
    """Tensors for what a step hands on, and does not keep in shared memory."""
    return _scratch(op, planned_loop(op).axes)


def _scratch(op: Op, axes: Sequence[Axis]) -> list[TensorType]:
    loop = planned_loop(op)
    kept = _kept(op, loop, axes)
    inner = (root for root in _roots(loop) if root.name == "scan")
    own = [v.type for v in loop.scratch if v not in kept]
    return [*own, *(t for root in inner for t in _scratch(root, ()))]


def _roots(loop: Loop) -> list[Op]:
    return [this.groups[-1].root for this in loop.passes]


def scan(kernel: Kernel, op: Op) -> None:
    """A grid of blocks; inside of another loop, the block that runs that."""
    made, loop = cast("CudaKernel", kernel), planned_loop(op)
    if isinstance(made, BlockKernel):
        _Steps(made, op, loop, {}, frozenset()).run()
        return
    lead = tuple(axis.size for axis in loop.axes)
    kept = _kept(op, loop, loop.axes)

    def task(place: Any) -> None:
        counters = kernel.frame.index(lead, flat=place).axes
        counters = tuple(kernel.writer.bind(c, "at") for c in counters)
        fixed = fixed_axes(zip(loop.axes, counters, strict=True))
        _Steps(made, op, loop, fixed, kept).run()

    made.blocks_over(kernel.sizes.product(lead), _warps(loop), task)


def _free(value: Value, axes: Sequence[Axis]) -> tuple[int, ...] | None:
    """The sizes of a value for one index of the independent axes; None where one is not known."""
    fixed = {axis.places.get(value) for axis in axes}
    sizes = [size for place, size in enumerate(value.type.shape) if place not in fixed]
    known = tuple(size for size in sizes if isinstance(size, int))
    return known if len(known) == len(sizes) else None


def _length(value: Value, axes: Sequence[Axis]) -> int | None:
    sizes, total = _free(value, axes), 1
    for size in sizes or ():
        total *= size
    return None if sizes is None else total


def _kept(op: Op, loop: Loop, axes: Sequence[Axis]) -> frozenset[Value]:
    """Carries, values of a step, and matrices that stay in shared memory."""
    ops = {op.name for this in loop.passes for group in this.groups for op in group.ops}
    if ops & _STAGING:
        return frozenset()
    has = op.defn.attributes()
    body, first = loop.body, has["carries"] + has["sequences"]
    read = {v for this in loop.passes for g in this.groups for o in g.ops for v in o.operands}
    matrices = [v for v in body.params[first:] if v in read and _is_matrix(v, loop)]
    room, kept = _ROOM, set()
    for value in (*body.params[: has["carries"]], *loop.scratch, *matrices):
        length = _length(value, axes)
        if length is None:
            continue
        need = -(-max(length, 1) * tvm.bytes_of(tvm.NAMES[value.type.dtype]) // 64) * 64
        if need <= room:
            kept.add(value)
            room -= need
    return frozenset(kept)


def _is_matrix(value: Value, loop: Loop) -> bool:
    """Whether some product reads a constant at every step."""
    ops = (op for this in loop.passes for group in this.groups for op in group.ops)
    return any(op.name in ("linear", "matmul") and value in op.operands for op in ops)


def _warps(loop: Loop) -> int:
    """Warps for the largest value that a step makes."""
    lengths = [_length(v, loop.axes) or 0 for v in (*loop.scratch, *loop.body.results)]
    return min(max(-(-max(lengths, default=1) // 32), _FEWEST), _MOST)


@dataclass
class _Steps:
    """The loop over time of one block."""

    kernel: CudaKernel
    op: Op
    loop: Loop
    fixed: Fixed
    kept: frozenset[Value]
    homes: dict[Value, Place] = field(default_factory=dict)

    def run(self) -> None:
        """Bring in what stays, step through the sequences, take out the carries."""
        has, writer = self.op.defn.attributes(), self.kernel.threads
        self._settle()
        sequence = present(self.op.operands[self._first])
        length = self.kernel.sizes(sequence.type.shape[has["axis"]])
        with writer.loop(length, name="t") as step:
            t = length - tvm.integer(1) - step if has["reverse"] else step
            frame = self._frame(writer.bind(t, "now"))
            spare = self._scratch[1]
            for this in self.loop.passes:
                root = this.groups[-1].root
                count = len(_scratch(root, ())) if root.name == "scan" else 0
                own, spare = spare[:count], spare[count:]
                self._pass(frame, this, own)
            self._advance(frame)
        for param, result in zip(self._carries, self.op.results, strict=False):
            if param in self.kept:
                self._move(param, self.homes[param], self._outer.places[result])

    @property
    def _outer(self) -> Frame:
        return self.kernel.frame

    @property
    def _first(self) -> int:
        return int(self.op.defn.attributes()["carries"])

    @property
    def _carries(self) -> tuple[Value, ...]:
        return self.loop.body.params[: self._first]

    @property
    def _scratch(self) -> tuple[list[Place], list[Place]]:
        """Memory for what steps hand on, and for loops inside."""
        places = list(self.kernel.scratch)
        count = sum(value not in self.kept for value in self.loop.scratch)
        return places[:count], places[count:]

    def _settle(self) -> None:
        """Give every carry, constant and value of a step its place."""
        has, body = self.op.defn.attributes(), self.loop.body
        for param, given, result in zip(
            self._carries, self.op.operands, self.op.results, strict=False
        ):
            home = self._shared(param) if param in self.kept else self._outer.places[result]
            self._bring(param, present(given), home)
        own, _ = self._scratch
        left = iter(own)
        for value in self.loop.scratch:
            self.homes[value] = self._shared(value) if value in self.kept else next(left)
        start = self._first + has["sequences"]
        for param, given in zip(body.params[start:], self.op.operands[start:], strict=True):
            operand = present(given)
            if param in self.kept:
                self._bring(param, operand, self._shared(param))
            else:
                self.homes[param] = memory_of(self._outer, operand)

    def _shared(self, value: Value) -> Place:
        """A place in shared memory for the part of a value that belongs to the block."""
        held = self.fixed.get(value, {})
        free = [axis for axis in range(value.type.rank) if axis not in held]
        shape = tuple(value.type.shape[axis] for axis in free)
        length = 1
        for size in shape:
            length *= cast("int", size)
        dtype = "uint16" if value.type.dtype == "bf16" else tvm.NAMES[value.type.dtype]
        made = self.kernel.threads.shared(dtype, max(length, 1))

        def where(index: Index) -> Any:
            return ravel(index.sizes, tuple(index.axes[axis] for axis in free), shape)

        return Place(made, value.type.dtype, where)

    def _bring(self, param: Value, given: Value, home: Place) -> None:
        self.homes[param] = home

        def put(index: Index) -> None:
            element = self._outer.at(given, index)
            self.kernel.writer.store(home.buffer, home.where(index), home.stored(element))

        self._spread(param, put)

    def _move(self, param: Value, source: Place, target: Place) -> None:
        def put(index: Index) -> None:
            element = self.kernel.writer.bind(source.load(index), "x")
            self.kernel.writer.store(target.buffer, target.where(index), target.stored(element))

        self._spread(param, put)

    def _spread(self, value: Value, body: Any) -> None:
        block = self.kernel.inside(self._outer, self.kernel.group, self.fixed)
        block.spread(value.type.shape, body, self.fixed.get(value, {}))

    def _frame(self, t: Any) -> Frame:
        """Where the values of the body lie in step ``t``."""
        has, op, body = self.op.defn.attributes(), self.op, self.loop.body
        ops = {r: o for o in body.ops for r in o.results}
        frame = Frame(self.kernel.writer, self.kernel.sizes, RULES, ops)
        frame.places.update(self.homes)
        first, second = self._first, self._first + has["sequences"]
        for param, given in zip(body.params[first:second], op.operands[first:second], strict=True):
            operand = present(given)
            place = memory_of(self._outer, operand)
            frame.places[param] = step_slice(place, operand.type.shape, has["axis"], t)
        for result, stacked in zip(body.results[first:], op.results[first:], strict=True):
            place = self._outer.places[stacked]
            frame.places[result] = step_slice(place, stacked.type.shape, has["axis"], t)
        for result, carry in self.loop.in_place.items():
            frame.places[result] = self.homes[carry]
        return frame

    def _pass(self, frame: Frame, this: Pass, scratch: Sequence[Place]) -> None:
        group = this.whole if this.fused else this.groups[0]
        fixed: Mapping[Value, Mapping[int, Any]] = self.fixed
        inner = self.kernel.inside(frame, group, fixed, scratch)
        with self.kernel.writer.block() as statements:
            if this.fused:
                write_pass(inner, this)
            else:
                inner.write()
        self.kernel.writer.emit(tvm.block(statements))

    def _advance(self, frame: Frame) -> None:
        """Let the new carries be those of the next step, when all of them are there."""
        for param, result in zip(self._carries, self.loop.body.results, strict=False):
            if result in self.loop.in_place:
                continue
            if result not in frame.places:
                raise BackendError(f"{self.op.loc}: a carry of a scan is stored nowhere")
            self._move(param, frame.places[result], frame.places[param])
