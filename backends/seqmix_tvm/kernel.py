"""One kernel: its parameters, the loops around its ops, and where its results go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from seqmix.errors import BackendError
from seqmix_ir.dims import Size
from seqmix_ir.graph import Op, Value
from seqmix_ir.ops.rules import normal_axis
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.frame import Frame
from seqmix_tvm.place import Index, Place, Sizes
from seqmix_tvm.plan import Group
from seqmix_tvm.rules import RULES
from seqmix_tvm.rules.layout import FLAT
from seqmix_tvm.rules.pointwise import COSTS, SCALAR
from seqmix_tvm.writer import Writer

__all__ = ["LANES", "Kernel", "Sink"]

LANES = 8
"""Elements of one vector operation."""

PARALLEL_FROM = 1 << 15
"""Additions from which on a kernel uses all threads."""

_CHUNK = 4096

Sink = Callable[[Index, Any], None]


@dataclass
class Kernel:
    """Writes the loops of one group of ops.

    ``fixed`` says, per value, which of its axes have an index already: those that a loop around
    the kernel runs over, as in the body of a scan. Such a kernel is one of many and stays serial.
    """

    writer: Writer
    frame: Frame
    group: Group
    fixed: Mapping[Value, Mapping[int, tvm.Expr]] = field(default_factory=dict)
    serial: bool = False
    scratch: Sequence[Place] = ()
    lane: Any = None
    """Of a row that several threads share: which of them this is."""

    @property
    def sizes(self) -> Sizes:
        """Symbolic sizes as expressions."""
        return self.frame.sizes

    @property
    def vectors(self) -> str:
        """The kind of a loop over the lanes of a vector: left to LLVM where they lie apart."""
        apart = any(op.name in SCALAR or not _keeps_rows(op) for op in self.group.ops)
        return "serial" if apart else "vectorized"

    @property
    def cost(self) -> int:
        """What one element of the result costs, in additions."""
        return sum(COSTS.get(op.name, 1) for op in self.group.ops)

    def write(self) -> None:
        """Write the loops of the group."""
        from seqmix_tvm.kernels import write_kernel

        write_kernel(self)

    def inside(
        self,
        frame: Frame,
        group: Group,
        fixed: Mapping[Value, Mapping[int, tvm.Expr]],
        scratch: Sequence[Place] = (),
    ) -> Kernel:
        """A kernel of the body of this one."""
        return Kernel(self.writer, frame, group, fixed, serial=True, scratch=scratch)

    def held(self, value: Value) -> Mapping[int, tvm.Expr]:
        """The axes of a value whose index is given from outside."""
        return self.fixed.get(value, {})

    def sink(self, index: Index, element: tvm.Expr) -> None:
        """Take an element of the anchor's result: run the epilogue and store what it gives."""
        root = self.group.root.results[0]
        chain = self.group.chain
        if not chain:
            self.frame.save(root, index, element)
            return
        self.frame.given[chain[0].results[0]] = self.writer.bind(element, "sum")
        for op in chain[1:]:
            index = self._moved(op, index)
        made = self.frame.at(root, index) if root not in self.frame.places else self._root(index)
        self.frame.save(root, index, made)
        del self.frame.given[chain[0].results[0]]

    def _root(self, index: Index) -> tvm.Expr:
        """The element of the root, which has a place but is not there yet."""
        op = self.group.root
        return RULES[op.name](self.frame, op, index)

    def _moved(self, op: Op, index: Index) -> Index:
        """Where an element of the operand of a link of the chain is in its result."""
        shape = op.results[0].type.shape
        if op.name == "transpose":
            perm = op.defn.attributes()["perm"]
            return self.frame.index(shape, tuple(index.axes[axis] for axis in perm))
        if shape == index.shape:
            return index
        from seqmix_tvm.place import reshaped

        return reshaped(index, shape)

    def store_root(self, index: Index) -> None:
        """Compute and store an element of a root that is no anchor."""
        self.frame.save(self.group.root.results[0], index, self._root(index))

    def spread(
        self,
        shape: tuple[Size, ...],
        body: Callable[[Index], None],
        held: Mapping[int, tvm.Expr] | None = None,
        cost: int | None = None,
    ) -> None:
        """Loops over all elements of a shape, rows in parallel where that pays.

        Axes of ``held`` have an index already and are not looped over.
        """
        if 0 in shape:
            return
        held = held or {}
        cost = self.cost if cost is None else cost
        free = [axis for axis in range(len(shape)) if axis not in held]
        inner = next((a for a in reversed(free) if shape[a] != 1), None)
        outer = tuple(axis for axis in free if axis != inner)

        def row(counters: tuple[Any, ...]) -> None:
            axes = {**held, **dict(zip(outer, counters, strict=True))}
            if inner is None:
                body(self._index(shape, axes))
                return
            with self.writer.loop(self.sizes(shape[inner]), name="j") as j:
                body(self._index(shape, {**axes, inner: j}))

        lead = tuple(shape[axis] for axis in outer)
        length = 1 if inner is None else shape[inner]
        self.rows(lead, row, cost, length)

    def _index(self, shape: tuple[Size, ...], axes: Mapping[int, tvm.Expr]) -> Index:
        return self.frame.index(shape, tuple(axes[axis] for axis in range(len(shape))))

    def flat(self, shape: tuple[Size, ...], body: Callable[[Index], None]) -> None:
        """One loop over all elements of a shape, in chunks that are spread over the threads."""
        total = self.sizes.product(shape)

        def serial() -> None:
            with self.writer.loop(total) as i:
                body(self.frame.index(shape, flat=i))

        def parallel() -> None:
            size = tvm.integer(_CHUNK)
            chunks = tvm.call("floordiv", total + tvm.integer(_CHUNK - 1), size)
            with self.writer.loop(chunks, "parallel", "chunk") as chunk:
                length = tvm.minimum(size, total - chunk * size)
                with self.writer.loop(length) as i:
                    body(self.frame.index(shape, flat=chunk * size + i))

        self.when_large(_product(shape) * self.cost, parallel, serial)

    def rows(
        self,
        lead: tuple[Size, ...],
        body: Callable[[tuple[Any, ...]], None],
        cost: int,
        length: Size,
    ) -> None:
        """A loop over the index of leading axes; ``cost`` is that of one of ``length`` elements."""
        if 0 in lead:
            return
        if not lead:
            body(())
            return

        def serial() -> None:
            self.writer.nest([self.sizes(s) for s in lead], body)

        def parallel() -> None:
            with self.writer.loop(self.sizes.product(lead), "parallel", "row") as row:
                body(self.frame.index(lead, flat=row).axes)

        self.when_large(_product(lead) * length * cost, parallel, serial)

    def team_rows(
        self,
        lead: tuple[Size, ...],
        body: Callable[[tuple[Any, ...]], None],
        cost: int,
        length: Size,
    ) -> None:
        """As :meth:`rows`, for rows that several threads may share: see :meth:`along`."""
        self.rows(lead, body, cost, length)

    @contextmanager
    def along(self, length: Size) -> Iterator[Any]:
        """A loop along a row, of which each thread takes its part."""
        with self.writer.loop(self.sizes(length), name="j") as j:
            yield j

    def fold(
        self, length: Size, element: Callable[[Any], Any], start: Any, combine: Any, dtype: str
    ) -> Any:
        """The elements of a row that threads share combined, for each of them."""
        raise BackendError("rows are not shared on this target")

    def once(self, body: Callable[[], None]) -> None:
        """What is done once for a row, however many threads share it."""
        body()

    def apart_along(
        self,
        shape: tuple[Size, ...],
        free: Sequence[int],
        axis: int,
        body: Callable[[tuple[Any, ...]], None],
    ) -> None:
        """Loops over the free axes of a shape, where order matters along one of them."""
        self.writer.nest([self.sizes(shape[a]) for a in free], body)

    def when_large(
        self, work: Size, parallel: Callable[[], None], serial: Callable[[], None]
    ) -> None:
        """One of two forms, by the number of additions; the serial one inside of other kernels."""
        if self.serial:
            serial()
        elif self.sizes.at_least(work) >= PARALLEL_FROM:
            parallel()
        elif isinstance(work, int):
            serial()
        else:
            many = self.sizes(work) >= tvm.integer(PARALLEL_FROM)
            self.writer.choose(many, parallel, serial)

    def chunks(self, length: Size, body: Callable[[Any, str], None], lanes: int = LANES) -> None:
        """``body(start, kind)`` for each full vector of a length, then for each element left.

        The kind is "vector", where ``start`` is the first of ``lanes`` elements, or "one".
        """
        full = tvm.call("floordiv", self.sizes(length), tvm.integer(lanes))
        if not isinstance(length, int) or length >= lanes:
            with self.writer.loop(full, name="c") as c:
                body(c * tvm.integer(lanes), "vector")
        if not isinstance(length, int) or length % lanes:
            rest = self.sizes(length) - full * tvm.integer(lanes)
            with self.writer.loop(rest, name="r") as r:
                body(full * tvm.integer(lanes) + r, "one")


def _keeps_rows(op: Op) -> bool:
    """Whether what lies side by side does so after an op that moves it, a full vector at a time."""
    if op.name == "transpose":
        perm = op.defn.attributes()["perm"]
        return normal_axis(perm[-1], len(perm)) == len(perm) - 1 if perm else True
    if op.name not in FLAT:
        return True
    before, after = (_last(value.type.shape) for value in (*op.values, *op.results))
    if before == after:
        return True
    return all(isinstance(size, int) and size % (2 * LANES) == 0 for size in (before, after))


def _last(shape: Sequence[Size]) -> Size:
    """The size of the last axis with more than one element."""
    return next((size for size in reversed(shape) if size != 1), 1)


def _product(shape: Sequence[Size]) -> Size:
    total: Size = 1
    for size in shape:
        total = total * size
    return total
