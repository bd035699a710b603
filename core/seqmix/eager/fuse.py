"""Several ops that torch has one call for: product and sum, clamp, log-sigmoid, pieces."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from seqmix_ir import ops
from seqmix_ir.dims import Size
from seqmix_ir.graph import Block, Op, Value
from seqmix_ir.ops.rules import normal_axis
from seqmix_ir.types import FLOATS

__all__ = ["Fused", "Plan", "plan_calls"]


@dataclass(frozen=True)
class Fused:
    """A call in place of several ops: its name, its operands, and what comes behind them."""

    name: str
    operands: tuple[Value, ...]
    more: str = ""


@dataclass
class Plan:
    """What a block's ops become: other calls, nothing, or one call for all pieces of a value."""

    calls: dict[Op, Fused] = field(default_factory=dict)
    skipped: set[Op] = field(default_factory=set)
    pieces: dict[Op, tuple[Op, ...]] = field(default_factory=dict)
    """The first of some slices, to all of them in order; together they are the whole."""

    def reads(self, op: Op) -> tuple[Value | None, ...]:
        """The operands of the call that stands for the op."""
        return self.calls[op].operands if op in self.calls else op.operands

    def makes(self, op: Op) -> tuple[Value, ...]:
        """The values that it gives."""
        return tuple(r for part in self.pieces.get(op, (op,)) for r in part.results)


def plan_calls(block: Block) -> Plan:
    """Look at every op once, with what made its operands."""
    plan = Plan()
    seen = _Seen(block)
    for op in block.ops:
        _plan_sum(plan, seen, op)
        _plan_clamp(plan, seen, op)
    _plan_pieces(plan, block)
    return plan


class _Seen:
    """Who made a value, and how many read it."""

    def __init__(self, block: Block) -> None:
        self._readers = Counter(v for op in block.ops for v in op.operands)
        self._readers.update(block.results)
        self._makers = {op.results[0]: op for op in block.ops}

    def maker(self, value: Value | None, *kinds: type) -> Op | None:
        """The op of one of these kinds that made ``value``."""
        op = None if value is None else self._makers.get(value)
        return op if op is not None and isinstance(op.defn, kinds) else None

    def alone(self, value: Value | None, *kinds: type) -> Op | None:
        """The same, if nothing else reads the value."""
        return self.maker(value, *kinds) if value and self._readers[value] == 1 else None


def _plan_sum(plan: Plan, seen: _Seen, op: Op) -> None:
    """``z + x y`` and ``z - x y``; ``z - softplus(-x)`` by what torch computes of ``-x`` itself."""
    if not isinstance(op.defn, ops.Add | ops.Sub) or op.results[0].type.dtype not in FLOATS:
        return
    minus = isinstance(op.defn, ops.Sub)
    for place in (1,) if minus else (1, 0):
        product = seen.alone(op.values[place], ops.Mul, ops.Matmul)
        if product is None or product in plan.calls:
            continue
        call = _product_and_sum(op, product, op.values[1 - place], minus)
        if call is not None:
            plan.calls[op] = call
            plan.skipped.add(product)
            return
    soft = seen.alone(op.values[1], ops.Softplus) if minus else None
    negated = seen.alone(soft.operands[0], ops.Neg) if soft is not None else None
    if soft is not None and negated is not None:
        plan.calls[soft] = Fused("log_sigmoid", negated.values)
        plan.calls[op] = Fused("add", op.values)
        plan.skipped.add(negated)


def _product_and_sum(op: Op, product: Op, other: Value, minus: bool) -> Fused | None:
    result = op.results[0].type
    if product.results[0].type != result:
        return None
    if isinstance(product.defn, ops.Mul):
        return Fused("addcmul", (other, *product.values), ", value=-1" if minus else "")
    more = ", alpha=-1" if minus else ""
    ranks = {v.type.rank for v in product.values}
    if ranks == {2} and other.type.rank <= 2:
        return Fused("addmm", (other, *product.values), more)
    x, y = (v.type.shape for v in product.values)
    if ranks == {3} and x[0] == y[0] and other.type.rank == 3:
        return Fused("baddbmm", (other, *product.values), more)
    return None


def _plan_clamp(plan: Plan, seen: _Seen, op: Op) -> None:
    """``min(max(x, low), high)`` of two numbers."""
    if not isinstance(op.defn, ops.Minimum):
        return
    inner = seen.alone(op.values[0], ops.Maximum)
    low = seen.maker(inner.operands[1], ops.Constant) if inner is not None else None
    high = seen.maker(op.values[1], ops.Constant)
    if inner is None or low is None or high is None:
        return
    ends = [_number(low), _number(high)]
    if all(isinstance(end, float) for end in ends):
        plan.calls[op] = Fused("clamp", inner.values[:1], f", {ends[0]!r}, {ends[1]!r}")
        plan.skipped.add(inner)


def _number(op: Op) -> Any:
    return op.defn.attributes()["value"]


def _plan_pieces(plan: Plan, block: Block) -> None:
    """Slices of equal width that are the whole of one value."""
    groups: dict[tuple[Value, int], list[Op]] = defaultdict(list)
    for op in block.ops:
        if isinstance(op.defn, ops.Slice) and op.defn.step == 1:
            x = op.values[0]
            groups[x, normal_axis(op.defn.axis, x.type.rank)].append(op)
    for (x, axis), cuts in groups.items():
        ordered = _whole(x.type.shape[axis], axis, cuts)
        if ordered:
            plan.pieces[cuts[0]] = ordered
            plan.skipped.update(cuts[1:])


def _whole(length: Size, axis: int, cuts: Sequence[Op]) -> tuple[Op, ...]:
    """The cuts in order, if they are the whole in equal pieces."""
    width = cuts[0].results[0].type.shape[axis]
    if len(cuts) < 2 or not isinstance(width, int) or not isinstance(length, int):
        return ()
    by_start = {cut.defn.attributes()["start"]: cut for cut in cuts}
    places = range(0, length, width) if width else ()
    same = all(cut.results[0].type.shape[axis] == width for cut in cuts)
    fits = same and len(cuts) == len(places) and length % width == 0
    return (
        tuple(by_start[place] for place in places) if fits and set(places) == set(by_start) else ()
    )
