"""Products of cotangents with local slopes, written so that the slopes can be multiplied before.

``(g a) b`` becomes ``g (a b)`` where ``g`` is known in the loop back alone, and ``a`` and ``b``
before: the chain rule along a path of elementwise functions is then one product in the loop. So it
is where ``g a`` has several readers, if all of them multiply it again.
"""

from __future__ import annotations

from collections.abc import Collection

from seqmix_ir import ops
from seqmix_ir.adjoint.tidy import tidied
from seqmix_ir.builder import Builder
from seqmix_ir.graph import Block, Op, Value

__all__ = ["gather_factors"]


def gather_factors(block: Block, late: Collection[Value]) -> Block:
    """The block with products regrouped; ``late`` are the parameters that come with the loop."""
    for _ in range(_ROUNDS):
        regrouped = _Regroup(block, late).run()
        if regrouped is None:
            return block
        block = tidied(regrouped)
    return block


_ROUNDS = 20


class _Regroup:
    def __init__(self, block: Block, late: Collection[Value]) -> None:
        self._block = block
        self._late = set(late)
        self._readers: dict[Value, int] = dict.fromkeys(block.results, 1)
        for op in block.ops:
            for v in op.operands:
                if v is not None:
                    self._readers[v] = self._readers.get(v, 0) + 1
        for op in block.ops:
            if any(v in self._late for v in op.operands if v is not None):
                self._late.update(op.results)
        self._alone = {v for v, count in self._readers.items() if count == 1}
        self._spread = self._read_by_products()
        self._env: dict[Value, Value] = {}
        self._b = Builder()

    def run(self) -> Block | None:
        """The block after one round; None where nothing changed."""
        changed = False
        for op in self._block.ops:
            operands = tuple(None if v is None else self._env.get(v, v) for v in op.operands)
            self._b.loc = op.loc
            new = self._regrouped(op)
            if new is None or new.type != op.results[0].type:
                self._b.append(Op(op.defn, operands, op.results, op.body, op.loc))
                continue
            changed = True
            self._env[op.results[0]] = new
            if op.results[0] in self._late:
                self._late.add(new)
        if not changed:
            return None
        results = tuple(self._env.get(r, r) for r in self._block.results)
        return Block(self._block.params, tuple(self._b.ops), results)

    def _read_by_products(self) -> set[Value]:
        """Late values that are read by nothing but products with early factors."""
        found = self._late - set(self._block.results)
        for op in self._block.ops:
            late = [v for v in op.operands if v in self._late]
            if not isinstance(op.defn, ops.Mul) or len(late) != 1:
                found.difference_update(late)
        return found

    def _regrouped(self, op: Op) -> Value | None:
        if isinstance(op.defn, ops.Mul):
            return self._product(*op.values)
        if isinstance(op.defn, ops.Neg):
            return self._negated(op.values[0])
        if isinstance(op.defn, ops.Add | ops.Sub):
            return self._sum(op)
        return None

    def _product(self, x: Value, y: Value) -> Value | None:
        """``(g a) b`` and ``(-g) b``, by whichever operand is late."""
        if (x in self._late) == (y in self._late):
            return None
        late, early = (x, y) if x in self._late else (y, x)
        maker = self._maker(late, self._alone | self._spread)
        if maker is None:
            return None
        if isinstance(maker.defn, ops.Neg):
            return self._b(ops.Mul(), maker.values[0], self._b(ops.Neg(), self._now(early)))
        parts = self._parts(maker)
        if parts is None:
            return None
        g, a = parts
        return self._b(ops.Mul(), g, self._b(ops.Mul(), a, self._now(early)))

    def _negated(self, x: Value) -> Value | None:
        """``-(g a)`` is ``g (-a)``."""
        maker = self._maker(x) if x in self._late else None
        parts = None if maker is None else self._parts(maker)
        return None if parts is None else self._b(ops.Mul(), parts[0], self._b(ops.Neg(), parts[1]))

    def _sum(self, op: Op) -> Value | None:
        """``g a + g b`` is ``g (a + b)``."""
        x, y = op.values
        makers = [self._maker(v) if v in self._late else None for v in (x, y)]
        parts = [None if m is None else self._parts(m) for m in makers]
        if parts[0] is None or parts[1] is None or parts[0][0] is not parts[1][0]:
            return None
        g, a = parts[0]
        return self._b(ops.Mul(), g, self._b(op.defn, a, parts[1][1]))

    def _maker(self, value: Value, among: Collection[Value] | None = None) -> Op | None:
        """The product or negation that made a value that one op alone reads, or of ``among``."""
        if value not in (self._alone if among is None else among):
            return None
        value = self._now(value)
        return self._b.producer(value, ops.Mul) or self._b.producer(value, ops.Neg)

    def _parts(self, maker: Op) -> tuple[Value, Value] | None:
        """``(g, a)`` of a product of one late and one early factor."""
        if not isinstance(maker.defn, ops.Mul):
            return None
        x, y = maker.values
        if (x in self._late) == (y in self._late):
            return None
        return (x, y) if x in self._late else (y, x)

    def _now(self, value: Value) -> Value:
        return self._env.get(value, value)
