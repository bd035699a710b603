"""One shape for all that is computed element by element, where shapes differ by axes of size 1.

In a graph for one token nearly all reshapes add, remove or move axes of size 1. Between two of
them stand a few elementwise ops, which do not care: this pass gives every connected set of such
ops one shape, and reshapes only what enters or leaves it with another.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TypeAlias

from seqmix_ir.builder import Builder
from seqmix_ir.dims import Size
from seqmix_ir.graph import Block, Graph, Module, Op, Value
from seqmix_ir.ops import ClipGradient, Constant, Reshape, Weight, Where
from seqmix_ir.ops.arithmetic import Binary
from seqmix_ir.ops.elementwise import Unary
from seqmix_ir.passes.canonicalize import canonicalize

__all__ = ["unify_layouts"]

Shape: TypeAlias = tuple[Size, ...]


def unify_layouts(graph: Graph) -> Graph:
    """The graph with as few reshapes between elementwise ops as one shape for each set takes.

    The shape is the one that most values already have where they enter or leave the set. Ops in
    bodies are left as they are.
    """
    block = _Rewriter(graph.block).rewritten()
    return canonicalize(Module(graph.name, (graph.with_block(block),))).graphs[0]


def _core(shape: Shape) -> Shape:
    """The sizes other than 1, in order: what the axes of size 1 stand between."""
    return tuple(size for size in shape if size != 1)


def _is_member(op: Op) -> bool:
    """An elementwise op that repeats no operand but single elements, or a reshape among 1s."""
    if isinstance(op.defn, Reshape):
        return _core(op.values[0].type.shape) == _core(op.results[0].type.shape)
    if not isinstance(op.defn, Unary | Binary | Where | ClipGradient):
        return False
    wanted = _core(op.results[0].type.shape)
    return all(_core(v.type.shape) in (wanted, ()) for v in op.values)


class _Sets:
    """Sets of values that are joined one pair at a time."""

    def __init__(self) -> None:
        self._parent: dict[Value, Value] = {}

    def find(self, value: Value) -> Value:
        """What stands for the set of ``value``."""
        path = []
        while (parent := self._parent.get(value, value)) is not value:
            path.append(value)
            value = parent
        self._parent.update(dict.fromkeys(path, value))
        return value

    def join(self, one: Value, other: Value) -> None:
        """Make one set of two."""
        self._parent[self.find(one)] = self.find(other)


class _Rewriter:
    """Rebuilds a block; every value of a set is at hand in the shape of its set or in its own."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._b = Builder()
        self._made_by = {v: op for op in block.ops for v in op.results}
        self._sets = _Sets()
        self._members = {op for op in block.ops if _is_member(op)}
        for op in self._members:
            for value in self._joined(op):
                self._sets.join(value, op.results[0])
        self._shapes = self._chosen()
        self._now: dict[Value, Value] = {}
        self._turned: dict[tuple[Value, Shape], Value] = {}

    def rewritten(self) -> Block:
        """The block, with the same parameters and results of the same types."""
        for op in self._block.ops:
            self._b.loc = op.loc
            if op not in self._members:
                own = tuple(None if v is None else self._as(v, v.type.shape) for v in op.operands)
                self._b.append(dataclasses.replace(op, operands=own))
            elif isinstance(op.defn, Reshape):
                self._now[op.results[0]] = self._now.get(op.values[0], op.values[0])
            else:
                self._now[op.results[0]] = self._computed(op)
        results = tuple(self._as(v, v.type.shape) for v in self._block.results)
        return self._b.block(self._block.params, results)

    def _joined(self, op: Op) -> list[Value]:
        """The operands that belong to the set of a member: not what is repeated, nor stored."""
        wanted = _core(op.results[0].type.shape)
        return [v for v in op.values if _core(v.type.shape) == wanted and not self._stored(v)]

    def _stored(self, value: Value) -> bool:
        """A weight or constant has whatever shape is asked for: that costs nothing at run time."""
        made = self._made_by.get(value)
        return made is not None and isinstance(made.defn, Weight | Constant)

    def _chosen(self) -> dict[Value, Shape]:
        """The shape of each set: that of most values at its border."""
        votes: dict[Value, Counter[Shape]] = {}
        for value in self._border():
            votes.setdefault(self._sets.find(value), Counter())[value.type.shape] += 1
        return {root: counter.most_common(1)[0][0] for root, counter in votes.items()}

    def _border(self) -> list[Value]:
        """Values that come into a set or go out of one, once per way."""
        found = [v for op in self._block.ops if op not in self._members for v in op.results]
        found += self._block.params
        found += self._block.results
        found += [
            v
            for op in self._block.ops
            if op not in self._members
            for v in op.operands
            if v is not None
        ]
        return found

    def _computed(self, op: Op) -> Value:
        """A member in the shape of its set."""
        result = op.results[0]
        shape = self._shapes.get(self._sets.find(result), result.type.shape)
        joined = set(self._joined(op))
        operands = [
            self._as(v, shape) if v in joined else self._beside(v, shape) for v in op.values
        ]
        value = self._b(op.defn, *operands, hint=result.hint)
        return value if value.type.shape == shape else self._b(Reshape(shape), value)

    def _beside(self, value: Value, shape: Shape) -> Value:
        """A single element, or something stored, as it broadcasts to ``shape``."""
        now = self._now.get(value, value)
        lead = len(shape) - now.type.rank
        if all(size == 1 for size in now.type.shape):
            return now if lead >= 0 else self._as(value, ())
        return now if lead >= 0 and now.type.shape == shape[lead:] else self._as(value, shape)

    def _as(self, value: Value, shape: Shape) -> Value:
        """A value of the old block in a shape, reshaped once for all who ask."""
        now = self._now.get(value, value)
        if now.type.shape == shape:
            return now
        if (now, shape) not in self._turned:
            self._turned[now, shape] = self._b(Reshape(shape), now)
        return self._turned[now, shape]
