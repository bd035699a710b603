"""Ops of one element each: mathematics, comparison, logic, choice, and casts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from seqmix_ir.graph import Op
from seqmix_ir.types import FLOATS
from seqmix_tvm import functions as f
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.frame import Frame, Rule
from seqmix_tvm.place import COMPUTED, Index, to_bfloat16

__all__ = ["COSTS", "RULES", "SCALAR"]


def _unary(function: Callable[[tvm.Expr], tvm.Expr]) -> Rule:
    def rule(frame: Frame, op: Op, index: Index) -> tvm.Expr:
        return frame.writer.bind(function(frame.at(op.operands[0], index)))

    return rule


def _binary(function: Callable[[tvm.Expr, tvm.Expr], tvm.Expr]) -> Rule:
    def rule(frame: Frame, op: Op, index: Index) -> tvm.Expr:
        x, y = (frame.broadcast(operand, index) for operand in op.operands)
        return frame.writer.bind(function(x, y))

    return rule


def _comparison(function: Callable[[tvm.Expr, tvm.Expr], tvm.Expr]) -> Rule:
    def compared(x: tvm.Expr, y: tvm.Expr) -> tvm.Expr:
        if tvm.dtype_of(x) == "bool":
            x, y = tvm.cast("int32", x), tvm.cast("int32", y)
        return function(x, y)

    return _binary(compared)


def _equal(x: tvm.Expr, y: tvm.Expr) -> tvm.Expr:
    """Written so that ``x == x`` is not simplified: it is false of NaN."""
    if tvm.dtype_of(x).startswith("float"):
        return tvm.both(x <= y, x >= y)
    return tvm.equal(x, y)


def _where(frame: Frame, op: Op, index: Index) -> tvm.Expr:
    condition, x, y = (frame.broadcast(operand, index) for operand in op.operands)
    # On a quotient by a choice that has a name, TVM's analysis of intervals fails.
    return frame.writer.hold(tvm.select(condition, x, y))


def _cast(frame: Frame, op: Op, index: Index) -> tvm.Expr:
    (x,) = op.values
    value, dtype = frame.at(x, index), op.results[0].type.dtype
    if dtype == "bool":
        zero = f.like(0, value) if x.type.dtype != "bool" else None
        return value if zero is None else frame.writer.bind(tvm.negated(_equal(value, zero)))
    if dtype == "bf16" and x.type.dtype != "bf16":
        bits = tvm.cast("uint32", to_bfloat16(value)) << tvm.integer(16, "uint32")
        return frame.writer.bind(tvm.reinterpret("float32", bits))
    if dtype == "f16" and x.type.dtype in FLOATS:
        value = tvm.cast("float16", value)
    if dtype in FLOATS and x.type.dtype not in FLOATS:
        return frame.writer.bind(f.from_integer(COMPUTED[dtype], value))
    # By way of memory: TVM's passes fail on a product with the float32 of a maximum in float64.
    return frame.writer.hold(tvm.cast(COMPUTED[dtype], value))


def _gelu(frame: Frame, op: Op, index: Index) -> tvm.Expr:
    x = frame.at(op.operands[0], index)
    if op.defn.attributes()["approximate"] == "none":
        curve = f.erf(x * f.like(math.sqrt(0.5), x))
    else:
        cube = x * x * x * f.like(0.044715, x)
        curve = f.tanh((x + cube) * f.like(math.sqrt(2 / math.pi), x))
    return frame.writer.bind(x * f.like(0.5, x) * (curve + f.like(1, x)))


def _same(frame: Frame, op: Op, index: Index) -> tvm.Expr:
    return frame.at(op.operands[0], index)


RULES: Mapping[str, Rule] = {
    "abs": _unary(tvm.absolute),
    "add": _binary(lambda x, y: x + y),
    "and": _binary(tvm.both),
    "cast": _cast,
    "ceil": _unary(lambda x: tvm.call("ceil", x)),
    "clip_gradient": _same,
    "cos": _unary(lambda x: f.from_libm("cos", x)),
    "div": _binary(lambda x, y: x / y),
    "equal": _comparison(_equal),
    "erf": _unary(f.erf),
    "exp": _unary(f.exp),
    "floor": _unary(lambda x: tvm.call("floor", x)),
    "floor_div": _binary(f.divided),
    "gelu": _gelu,
    "greater": _comparison(lambda x, y: x > y),
    "greater_equal": _comparison(lambda x, y: x >= y),
    "less": _comparison(lambda x, y: x < y),
    "less_equal": _comparison(lambda x, y: x <= y),
    "log": _unary(lambda x: f.from_libm("log", x)),
    "maximum": _binary(f.larger),
    "minimum": _binary(f.smaller),
    "mod": _binary(f.floor_mod),
    "mul": _binary(lambda x, y: x * y),
    "neg": _unary(f.negative),
    "not": _unary(tvm.negated),
    "not_equal": _comparison(lambda x, y: tvm.negated(_equal(x, y))),
    "or": _binary(tvm.either),
    "pow": _binary(f.power),
    "reciprocal": _unary(f.reciprocal),
    "relu": _unary(lambda x: f.larger(x, f.like(0, x))),
    "round": _unary(lambda x: tvm.call("nearbyint", x)),
    "sigmoid": _unary(f.sigmoid),
    "sign": _unary(f.sign),
    "silu": _unary(lambda x: x * f.sigmoid(x)),
    "sin": _unary(lambda x: f.from_libm("sin", x)),
    "softplus": _unary(f.softplus),
    "sqrt": _unary(lambda x: tvm.call("sqrt", x)),
    "sub": _binary(lambda x, y: x - y),
    "tanh": _unary(f.tanh),
    "where": _where,
}

COSTS: Mapping[str, int] = {
    "cos": 20, "erf": 20, "exp": 6, "gelu": 20, "log": 20, "pow": 40, "sigmoid": 8, "silu": 8,
    "sin": 20, "softplus": 26, "tanh": 12, "div": 4, "reciprocal": 4, "sqrt": 4, "mod": 10,
    "floor_div": 10,
}  # fmt: skip
"""What an element costs, in additions; 1 where nothing is said."""

SCALAR = frozenset(
    {"cos", "erf", "gelu", "log", "mod", "pow", "sin"}
    | {"gather", "gather_elements", "iota", "size"}
)
"""Ops that call C's library, or compute with indices: a loop over them is left to LLVM."""
