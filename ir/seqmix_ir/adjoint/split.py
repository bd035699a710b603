"""Take out of a loop what need not be in it: before it, behind it, for all steps at once.

Of the ops of a body, those that no carry flows into are computed before the loop, and those that
flow into no carry behind it. ``T`` steps; everything is stacked along axis 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from seqmix_ir import ops
from seqmix_ir.adjoint.amounts import elements
from seqmix_ir.adjoint.lift import Many, can_lift, lift, stack
from seqmix_ir.adjoint.pull_back import replay
from seqmix_ir.builder import Builder
from seqmix_ir.dims import Size
from seqmix_ir.graph import Block, Op, Value

__all__ = ["LARGE", "Split"]

LARGE = 8
"""A value that is stacked for it alone may be so many times what the loop reads and writes anyway.

A matrix that each step makes of two vectors and adds to another one stays in the loop.
"""

Kind = Literal["literal", "same", "step"]


@dataclass(frozen=True)
class Looped:
    """A loop that has been emitted: the op, and the values of its body that it stacks.

    There is no op where nothing stayed inside.
    """

    op: Op | None
    stacked: tuple[Value, ...]

    @property
    def results(self) -> tuple[Value, ...]:
        """The last carries, then what is stacked."""
        return () if self.op is None else self.op.results


class Split:
    """One scan over axis 0 on its way into ``b``; values are named by those of its body."""

    def __init__(
        self,
        b: Builder,
        scan: ops.Scan,
        body: Block,
        operands: Sequence[Value],
        summed: Collection[Value] = (),
    ) -> None:
        """``operands`` are those of the scan, values that ``b`` has.

        Results of the body in ``summed`` are not outputs: only their sum over the steps is wanted.
        """
        self._b = b
        self._scan = scan
        self._body = body
        self._loc = b.loc
        first, second = scan.carries, scan.carries + scan.sequences
        self._starts, self._carries = operands[:first], body.params[:first]
        self.T: Size = operands[first].type.shape[0]
        sequences = zip(body.params[first:second], operands[first:second], strict=True)
        constants = zip(body.params[second:], operands[second:], strict=True)
        self._outer = {p: Many(v, True) for p, v in sequences}
        self._outer.update({p: Many(v, False) for p, v in constants})
        self._makers = {r: op for op in body.ops for r in op.results}
        slices = [*body.params[first:second], *(r for r in body.results[first:] if r not in summed)]
        self._limit = LARGE * sum(elements(v.type.shape) for v in slices)
        self._free = self._find_free()
        self._kept: set[Op | None] = set(self._find_kept())

    @property
    def moved(self) -> int:
        """How many ops leave the loop, literals not counted."""
        free = {self._op(v) for v, kind in self._free.items() if kind != "literal"} - {None}
        return len(free) + sum(self._is_behind(op) for op in self._body.ops)

    def emit(self, wanted: Iterable[Value], summed: Iterable[Value] = ()) -> Looped:
        """Emit the loop, and before it what it reads; it stacks what :meth:`of` will need.

        ``wanted`` are the values that :meth:`of` will be asked for, ``summed`` those that
        :meth:`seqmix_ir.adjoint.sums.total` will be.
        """
        stacked = self._frontier([*wanted, *summed])
        kept = [op for op in self._body.ops if op in self._kept]
        news = self._body.results[: self._scan.carries]
        if not news and not stacked:
            return Looped(None, ())
        read = dict.fromkeys(v for op in kept for v in op.operands if v is not None)
        read.update(dict.fromkeys(news))
        literals = self._literals(read)
        steps = [v for v in read if self._free.get(v) == "step"]
        same = [v for v in read if self._free.get(v) == "same"]
        steps = steps or [self._body.params[self._scan.carries]]
        given = [self._of_all(v).value for v in (*steps, *same)]
        order = [op for op in self._body.ops if op in self._kept or op in literals]
        block = _copied((*self._carries, *steps, *same), order, (*news, *stacked))
        defn = ops.Scan(self._scan.carries, len(steps), 0, self._scan.reverse)
        self._b.loc = self._loc
        results = self._b.emit(defn, *self._starts, *given, body=block)
        outputs = results[self._scan.carries :]
        self._outer.update({v: Many(y, True) for v, y in zip(stacked, outputs, strict=True)})
        return Looped(self._b.ops[-1], tuple(stacked))

    def of(self, value: Value) -> Value:
        """What stands for the values of all steps, stacked."""
        return stack(self._b, self._of_all(value), self.T)

    def reads_large(self, value: Value) -> bool:
        """Whether a value needs something of the loop that is too large to be stacked."""
        needs = self._frontier([value])
        return any(elements(v.type.shape) > self._limit for v in needs)

    def many(self, value: Value) -> Many:
        """Like :meth:`of`, but a value that is the same in all steps stays one."""
        return self._of_all(value)

    def maker(self, value: Value) -> Op | None:
        """The op of a value that stands outside of the loop, and is not at hand yet."""
        return None if value in self._outer else self._op(value)

    def _of_all(self, value: Value) -> Many:
        if (known := self._outer.get(value)) is None:
            op = self._makers[value]
            operands = [None if v is None else self._of_all(v) for v in op.operands]
            known = self._outer[value] = lift(self._b, op, operands, self.T)
        return known

    def _op(self, value: Value) -> Op | None:
        return self._makers.get(value)

    def _find_free(self) -> dict[Value, Kind]:
        """What depends on no carry, and may stand before the loop."""
        first = self._scan.carries + self._scan.sequences
        kinds: dict[Value, Kind] = {}
        for place, param in enumerate(self._body.params):
            if place >= self._scan.carries:
                kinds[param] = "same" if place >= first else "step"
        for op in self._body.ops:
            kind = self._kind(op, kinds)
            if kind is not None:
                kinds.update(dict.fromkeys(op.results, kind))
        return kinds

    def _kind(self, op: Op, kinds: dict[Value, Kind]) -> Kind | None:
        found = {kinds.get(v) for v in op.operands if v is not None}
        if None in found:
            return None
        if found <= {"literal"} and not isinstance(op.defn, ops.Weight):
            return "literal"
        if "step" not in found:
            return "same" if op.body is None and len(op.results) == 1 else None
        if not can_lift(op) or elements(op.results[0].type.shape) > self._limit:
            return None
        return "step"

    def _find_kept(self) -> set[Op]:
        """The ops that stay in the loop."""
        kept: set[Op] = set()
        self._keep(kept, self._body.results[: self._scan.carries])
        for op in self._body.ops:
            if op in kept or op.results[0] in self._free:
                continue
            if not can_lift(op) or self._reads_too_much(op, kept):
                self._keep(kept, op.results)
        return kept

    def _keep(self, kept: set[Op], values: Iterable[Value]) -> None:
        todo = list(values)
        while todo:
            value = todo.pop()
            op = self._makers.get(value)
            if op is None or op in kept or value in self._free:
                continue
            kept.add(op)
            todo.extend(v for v in op.operands if v is not None)

    def _reads_too_much(self, op: Op, kept: set[Op]) -> bool:
        """Whether behind the loop the op would need something large that the loop makes."""
        for value in op.operands:
            if value is None or elements(value.type.shape) <= self._limit:
                continue
            if value in self._carries or self._op(value) in kept:
                return True
        return False

    def _is_behind(self, op: Op) -> bool:
        return op not in self._kept and op.results[0] not in self._free

    def _frontier(self, wanted: Sequence[Value]) -> list[Value]:
        """The values of the loop that something behind it needs, in a fixed order."""
        found: dict[Value, None] = {}
        seen: set[Value] = set()
        todo = list(reversed(wanted))
        while todo:
            value = todo.pop()
            if value in seen or value in self._free:
                continue
            seen.add(value)
            op = self._makers.get(value)
            if op is None or op in self._kept:
                found[value] = None
                continue
            todo.extend(v for v in reversed(op.operands) if v is not None)
        return list(found)

    def _literals(self, read: Iterable[Value]) -> set[Op]:
        """Constants are written again inside of the loop."""
        found: set[Op] = set()
        todo = [v for v in read if self._free.get(v) == "literal"]
        while todo:
            op = self._makers[todo.pop()]
            if op not in found:
                found.add(op)
                todo.extend(v for v in op.operands if v is not None)
        return found


def _copied(params: Sequence[Value], run: Sequence[Op], results: Sequence[Value]) -> Block:
    """A block of values of its own: a body that several loops share becomes several."""
    b = Builder()
    env = {p: Value(p.type, p.hint) for p in params}
    inner = list(env.values())
    replay(b, run, env)
    return b.block(inner, [env[r] for r in results])
