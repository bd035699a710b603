"""Sizes replaced everywhere in a graph: in types, in attributes, and in the bodies of ops."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

from seqmix_ir.builder import Builder
from seqmix_ir.defn import OpDef
from seqmix_ir.dims import Dim, Size
from seqmix_ir.graph import Block, Op, Value
from seqmix_ir.passes.rewrite import Bodies, change_body
from seqmix_ir.types import TensorType

__all__ = ["Resize", "resize_block"]

Resize: TypeAlias = "Callable[[Size], Size]"


def resize_block(block: Block, change: Resize) -> Block:
    """The block with ``change`` applied to every size; the same object if none changes.

    Results of ops get the types that the ops infer from their new operands, so that the block is
    valid whatever ``change`` does. IRError, with the location, for an op that refuses its new
    sizes, such as a slice that would end before it starts.
    """
    return _Resizer(change).block(block)


class _Resizer:
    def __init__(self, change: Resize) -> None:
        self._change = change
        self._bodies: Bodies = {}

    def block(self, block: Block) -> Block:
        """The block rebuilt, or the same object."""
        b = Builder()
        env = {p: self._param(p) for p in block.params}
        changed = any(new is not old for old, new in env.items())
        for op in block.ops:
            results = self._op(b, op, env)
            changed = changed or results is not op.results
            env.update(zip(op.results, results, strict=True))
        if not changed:
            return block
        return b.block([env[p] for p in block.params], [env[r] for r in block.results])

    def _op(self, b: Builder, op: Op, env: dict[Value, Value]) -> tuple[Value, ...]:
        """Append the op as it is, or with new sizes; its results afterwards."""
        defn = self._definition(op.defn)
        operands = tuple(None if v is None else env[v] for v in op.operands)
        body = change_body(op, self._bodies, self.block)
        if defn is op.defn and operands == op.operands and body is op.body:
            b.append(op)
            return op.results
        b.loc = op.loc
        return b.emit(defn, *operands, body=body, hints=[v.hint for v in op.results])

    def _param(self, param: Value) -> Value:
        type = self._value(param.type)
        return param if type == param.type else Value(type, param.hint)

    def _definition(self, defn: OpDef) -> OpDef:
        """The op's definition with its attributes changed."""
        old = defn.attributes()
        new = {key: self._value(value) for key, value in old.items()}
        changed = {key: value for key, value in new.items() if value is not old[key]}
        return dataclasses.replace(defn, **changed) if changed else defn  # type: ignore[type-var]

    def _value(self, value: Any) -> Any:
        """An attribute value or a type; the same object where it names no size that changes."""
        if isinstance(value, Dim):
            size = self._change(value)
            return value if size == value else size
        if isinstance(value, TensorType):
            shape = self._value(value.shape)
            return value if shape is value.shape else value.with_shape(shape)
        if isinstance(value, tuple):
            items = tuple(map(self._value, value))
            return value if all(n is o for n, o in zip(items, value, strict=True)) else items
        return value
