"""Rules for comparison, logic and choice."""

from __future__ import annotations

from typing import Any

from seqmix.capture.aten import Call, aten
from seqmix_ir.defn import OpDef
from seqmix_ir.graph import Value
from seqmix_ir.ops import (
    And,
    Equal,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    Not,
    NotEqual,
    Or,
    Where,
)

__all__: list[str] = []

_COMPARE: dict[str, OpDef] = {
    "eq": Equal(),
    "ne": NotEqual(),
    "lt": Less(),
    "le": LessEqual(),
    "gt": Greater(),
    "ge": GreaterEqual(),
}


def _compare(name: str, defn: OpDef) -> None:
    def rule(c: Call, x: Any, y: Any) -> Value:
        dtype = c.common_dtype()
        if dtype == "bool" and name not in ("eq", "ne"):
            dtype = "i64"
        return c.b(defn, c.operand(x, dtype), c.operand(y, dtype))

    aten(f"{name}.Tensor", f"{name}.Scalar")(rule)


for _name, _defn in _COMPARE.items():
    _compare(_name, _defn)


@aten("where.self", "where.Scalar", "where.ScalarSelf", "where.ScalarOther")
def _where(c: Call, condition: Value, x: Any, y: Any) -> Value:
    return c.b(Where(), condition, c.operand(x, c.dtype), c.operand(y, c.dtype))


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(c: Call, x: Value, mask: Value, value: Any) -> Value:
    return c.b(Where(), mask, c.operand(value, c.dtype), x)


@aten("logical_not", "bitwise_not")
def _not(c: Call, x: Value) -> Value:
    _only_bool(c, x)
    return c.b(Not(), c.cast(x, "bool"))


@aten("logical_and", "bitwise_and.Tensor", "bitwise_and.Scalar", "__and__.Tensor")
def _and(c: Call, x: Any, y: Any) -> Value:
    _only_bool(c, x, y)
    return c.b(And(), c.operand(x, "bool"), c.operand(y, "bool"))


@aten("logical_or", "bitwise_or.Tensor", "bitwise_or.Scalar", "__or__.Tensor")
def _or(c: Call, x: Any, y: Any) -> Value:
    _only_bool(c, x, y)
    return c.b(Or(), c.operand(x, "bool"), c.operand(y, "bool"))


@aten("logical_xor", "bitwise_xor.Tensor", "__xor__.Tensor")
def _xor(c: Call, x: Any, y: Any) -> Value:
    _only_bool(c, x, y)
    return c.b(NotEqual(), c.operand(x, "bool"), c.operand(y, "bool"))


def _only_bool(c: Call, *operands: Any) -> None:
    if "logical" not in str(c.node.target) and c.dtype != "bool":
        raise c.refuse("the IR has no bit operations on integers", "use //, % and *")
