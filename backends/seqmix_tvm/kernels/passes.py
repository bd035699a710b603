"""Which kernels of a loop's body become one pass over their elements, and what it need not store.

Pointwise groups of one shape that follow each other are computed element by element together. What
only the pass itself reads is stored nowhere, and the next value of a carry goes where the carry
lies, if nothing reads the old one afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from seqmix_ir.graph import Block, Op, Value
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.place import Index
from seqmix_tvm.plan import Group
from seqmix_tvm.rules import RULES
from seqmix_tvm.rules.pointwise import RULES as POINTWISE

__all__ = ["Pass", "plan_passes", "write_pass"]

Alike = Callable[[Value, Value], bool]


@dataclass(frozen=True, eq=False)
class Pass:
    """Groups that are written together, or a single one with loops of its own.

    ``stored`` are the results that lie in memory; of these, ``in_place`` take that of a carry.
    """

    groups: tuple[Group, ...]
    stored: tuple[Value, ...]
    in_place: Mapping[Value, Value]

    @property
    def fused(self) -> bool:
        """Whether all of it is pointwise."""
        return all(group.anchor is None for group in self.groups)

    @property
    def whole(self) -> Group:
        """All ops as one group."""
        ops = dict.fromkeys(op for group in self.groups for op in group.ops)
        inputs = dict.fromkeys(v for group in self.groups for v in group.inputs)
        return Group(self.groups[-1].root, None, tuple(ops), tuple(inputs))


def plan_passes(body: Block, groups: Sequence[Group], carries: int, alike: Alike) -> list[Pass]:
    """The passes of a body, in order; ``alike`` says of two values whether loops run alike."""
    runs: list[list[Group]] = []
    for group in groups:
        if runs and _joins(runs[-1], group, alike):
            runs[-1].append(group)
        else:
            runs.append([group])
    pairs = list(zip(body.params[:carries], body.results[:carries], strict=True))
    return [_pass(body, runs, place, pairs) for place in range(len(runs))]


def _joins(run: Sequence[Group], group: Group, alike: Alike) -> bool:
    """Whether a group can be computed element by element after those of a run."""
    if group.anchor is not None or run[0].anchor is not None:
        return False
    first, own = run[0].results[0], group.results[0]
    made = {result for other in run for result in other.results}
    same = first.type.shape == own.type.shape and alike(first, own)
    return same and _aligned(group, made)


def _pass(
    body: Block, runs: list[list[Group]], place: int, pairs: list[tuple[Value, Value]]
) -> Pass:
    run = runs[place]
    made = [result for group in run for result in group.results]
    later = {v for other in runs[place + 1 :] for group in other for v in group.inputs}
    fused = run[0].anchor is None
    in_place = {
        result: carry
        for carry, result in pairs
        if fused and result in made and carry not in later and _all_aligned(run, carry)
    }
    needed = later | set(body.results)
    stored = tuple(result for result in made if not fused or result in needed)
    return Pass(tuple(run), stored, in_place)


def _all_aligned(run: Sequence[Group], carry: Value) -> bool:
    """Whether every element of a carry is read for the same element of the results alone."""
    shape = run[0].results[0].type.shape
    return carry.type.shape == shape and all(_aligned(group, {carry}) for group in run)


def _aligned(group: Group, values: set[Value]) -> bool:
    """Whether one element of the group's result reads just that element of each of ``values``."""
    shape = group.results[0].type.shape
    readers: dict[Value, list[Op]] = {}
    for op in group.ops:
        for value in op.operands:
            if value is not None:
                readers.setdefault(value, []).append(op)
    straight: set[Op] = set()
    for op in reversed(group.ops):
        above = [reader for result in op.results for reader in readers.get(result, [])]
        if straight.issuperset(above) and _keeps(op, shape):
            straight.add(op)
    return all(
        reader in straight and value.type.shape == shape
        for value in values
        for reader in readers.get(value, [])
    )


def _keeps(op: Op, shape: tuple[object, ...]) -> bool:
    """Whether an op makes each element of a tensor of ``shape`` from those at its place."""
    if op.results[0].type.shape != shape:
        return False
    if op.name == "reshape":
        return op.values[0].type.shape == shape
    return op.name in POINTWISE


def write_pass(kernel: Kernel, this: Pass) -> None:
    """The loops of a fused pass: all results of an element, then the stores.

    They are left to LLVM to turn into vectors.
    """
    root, writer = kernel.group.root.results[0], kernel.writer

    def element(index: Index) -> None:
        _element(kernel, this, index)

    before, writer.apart = writer.apart, True
    kernel.spread(root.type.shape, element, kernel.held(root))
    writer.apart = before


def _element(kernel: Kernel, this: Pass, index: Index) -> None:
    frame = kernel.frame
    made: dict[Value, tvm.Expr] = {}
    for group in this.groups:
        result = group.results[0]
        made[result] = kernel.writer.bind(RULES[group.root.name](frame, group.root, index), "made")
        frame.given[result] = made[result]
    for result in made:
        del frame.given[result]
    for result in this.stored:
        frame.save(result, index, made[result])
