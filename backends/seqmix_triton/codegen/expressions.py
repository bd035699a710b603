"""The Triton expression of every op of single elements, and of reductions of a row.

Floats of 16 bits are carried as float32 and rounded where a kernel stores them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from seqmix_ir.graph import Op
from seqmix_ir.types import FLOATS, DType

__all__ = [
    "CARRIED",
    "FUNCTIONS",
    "TYPES",
    "carried",
    "literal",
    "missing",
    "neutral",
    "pointwise",
    "reduction",
]

TYPES: Mapping[str, str] = {
    "f64": "tl.float64", "f32": "tl.float32", "f16": "tl.float16", "bf16": "tl.bfloat16",
    "i64": "tl.int64", "i32": "tl.int32", "i8": "tl.int8", "u8": "tl.uint8", "bool": "tl.int1",
}  # fmt: skip
CARRIED: Mapping[str, DType] = {"f16": "f32", "bf16": "f32"}

Write: TypeAlias = "Callable[[Op, list[str]], str]"


def carried(dtype: DType) -> DType:
    """The dtype in which a kernel computes values of ``dtype``."""
    return CARRIED.get(dtype, dtype)


def literal(value: Any, dtype: DType) -> str:
    """A scalar constant."""
    if dtype in FLOATS:
        number = float(value)
        text = repr(number) if math.isfinite(number) else f'float("{number}")'
    else:
        text = repr(bool(value) if dtype == "bool" else int(value))
    return f"tl.full([], {text}, {TYPES[carried(dtype)]})"


def missing(op: Op) -> str | None:
    """None, or why an op of single elements or of a row has no expression."""
    if op.name == "reduce":
        kind = op.defn.attributes()["kind"]
        return f"there is no generated '{kind}' of a row" if kind == "prod" else None
    if op.name in _WRITE or op.name in _WRITTEN_OUT:
        return None
    return f"there is no generated form of '{op.name}'"


def pointwise(op: Op, operands: list[str]) -> str:
    """The expression of an op on the names of its operands."""
    return _WRITE[op.name](op, operands)


def reduction(op: Op, row: str, axis: int, size: str) -> str:
    """The expression of a reduction of ``row``, whose ``axis`` holds ``size`` elements."""
    has = op.defn.attributes()
    dtype = op.results[0].type.dtype
    wide = dtype in FLOATS and has["accumulate"] == "f64" and carried(dtype) != "f64"
    row = f"{row}.to(tl.float64)" if wide else row
    kind = has["kind"]
    if kind in ("any", "all"):
        function = "max" if kind == "any" else "min"
        return f"tl.{function}({row}.to(tl.int32), {axis}) != 0"
    if kind == "mean" and size != "1":
        text = f"tl.sum({row}, {axis}) / {size}"
    else:
        text = f"tl.{'sum' if kind == 'mean' else kind}({row}, {axis})"
    return f"({text}).to({TYPES[carried(dtype)]})" if wide or dtype in ("i8", "u8") else text


def neutral(op: Op) -> str:
    """What stands in a row behind its end."""
    kind, dtype = op.defn.attributes()["kind"], op.results[0].type.dtype
    if kind in ("sum", "mean"):
        return "0.0" if dtype in FLOATS else "0"
    if kind in ("any", "all"):
        return str(kind == "all")
    if dtype in FLOATS:
        return 'float("-inf")' if kind == "max" else 'float("inf")'
    low, high = _LIMITS[dtype]
    return str(low if kind == "max" else high)


_LIMITS = {
    "i64": (-(2**63), 2**63 - 1),
    "i32": (-(2**31), 2**31 - 1),
    "i8": (-128, 127),
    "u8": (0, 255),
}


def _form(template: str) -> Write:
    return lambda op, operands: template.format(*operands)


def _by_kind(floats: str, whole: str) -> Write:
    """Another form for integers."""

    def write(op: Op, operands: list[str]) -> str:
        given = op.operands[0]
        is_float = given is not None and given.type.dtype in FLOATS
        return (floats if is_float else whole).format(*operands)

    return write


def _gelu(op: Op, operands: list[str]) -> str:
    exact = op.defn.attributes()["approximate"] == "none"
    return f"{'gelu' if exact else 'gelu_tanh'}({operands[0]})"


def _cast(op: Op, operands: list[str]) -> str:
    (x,), (given,) = operands, op.values
    to, now = carried(op.results[0].type.dtype), carried(given.type.dtype)
    if to == now:
        return x
    if to == "bool":
        return f"{x} != 0"
    return f"{x}.to({TYPES[to]})"


_NAN = "propagate_nan=tl.PropagateNan.ALL"
_WRITE: Mapping[str, Write] = {
    "abs": _form("tl.abs({0})"),
    "add": _form("{0} + {1}"),
    "and": _form("{0} & {1}"),
    "cast": _cast,
    "ceil": _form("tl.ceil({0})"),
    "clip_gradient": _form("{0}"),
    "cos": _form("tl.cos({0})"),
    "div": _form("{0} / {1}"),
    "equal": _form("{0} == {1}"),
    "erf": _form("tl.erf({0})"),
    "exp": _form("tl.exp({0})"),
    "expm1": _form("expm1({0})"),
    "floor": _form("tl.floor({0})"),
    "floor_div": _by_kind("floor_div_float({0}, {1})", "floor_div_int({0}, {1})"),
    "gelu": _gelu,
    "greater": _form("{0} > {1}"),
    "greater_equal": _form("{0} >= {1}"),
    "less": _form("{0} < {1}"),
    "less_equal": _form("{0} <= {1}"),
    "log": _form("tl.log({0})"),
    "log1p": _form("log1p({0})"),
    "maximum": _by_kind(f"tl.maximum({{0}}, {{1}}, {_NAN})", "tl.maximum({0}, {1})"),
    "minimum": _by_kind(f"tl.minimum({{0}}, {{1}}, {_NAN})", "tl.minimum({0}, {1})"),
    "mod": _by_kind("mod_float({0}, {1})", "mod_int({0}, {1})"),
    "mul": _form("{0} * {1}"),
    "neg": _form("-{0}"),
    "not": _form("{0} == 0"),
    "not_equal": _form("{0} != {1}"),
    "or": _form("{0} | {1}"),
    "reciprocal": _form("1.0 / {0}"),
    "relu": _form(f"tl.maximum({{0}}, 0.0, {_NAN})"),
    "round": _form("round_even({0})"),
    "sigmoid": _form("sigmoid({0})"),
    "sign": _form("sign({0})"),
    "silu": _form("silu({0})"),
    "sin": _form("tl.sin({0})"),
    "softplus": _form("softplus({0})"),
    "sqrt": _form("tl.sqrt({0})"),
    "sub": _form("{0} - {1}"),
    "tanh": _form("tanh({0})"),
    "where": _form("tl.where({0}, {1}, {2})"),
}
_WRITTEN_OUT = ("layer_norm", "rms_norm", "softmax")
"""What is written in simpler ops before a kernel is."""

FUNCTIONS = (
    "expm1", "floor_div_float", "floor_div_int", "gelu", "gelu_tanh", "log1p", "mod_float",
    "mod_int", "round_even", "sigmoid", "sign", "silu", "softplus", "tanh",
)  # fmt: skip
"""Names of :mod:`seqmix_triton.kernels.functions` that expressions may call."""
