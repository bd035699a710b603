"""For which element types ONNX Runtime has no kernel, and what is done about it: tables.

Found by running every op on every element type with the CPU provider of ONNX Runtime 1.32. Ops
that are not named here run on all types that the IR allows them.
"""

from __future__ import annotations

from collections.abc import Mapping

from seqmix_ir.graph import Op, Value
from seqmix_ir.types import FLOATS, DType

__all__ = ["MISSING", "PREFERENCES", "casts_around", "missing_kernel", "with_dtypes"]

MISSING: Mapping[str, frozenset[str]] = {
    "acos": frozenset({"f64"}),
    "acosh": frozenset({"f64"}),
    "asin": frozenset({"f64"}),
    "asinh": frozenset({"f64"}),
    "atan": frozenset({"f64"}),
    "atanh": frozenset({"f64"}),
    "attention": frozenset({"f64"}),
    "causal_conv1d": frozenset({"f64"}),
    "conv1d": frozenset({"f64"}),
    "cosh": frozenset({"f64"}),
    "erf": frozenset({"f64"}),
    "gelu": frozenset({"f64"}),
    "linear_attention": frozenset({"f64"}),
    "rms_norm": frozenset({"f64"}),
    "rotary": frozenset({"f64"}),
    "sinh": frozenset({"f64"}),
    "softplus": frozenset({"f64"}),
    "tan": frozenset({"f64"}),
}
"""Per op: types without a kernel, nor one of a wider type; such an op is decomposed or refused."""

PREFERENCES: Mapping[str, tuple[str, ...]] = {
    "linear_attention": ("chunkwise",),
    "selected_attention": ("gathered",),
}
"""Per op without an operator: the forms in simpler ops that run fastest, best first."""

_WIDER: Mapping[tuple[str, DType], DType] = {
    ("cumprod", "f16"): "f32",
    ("cumprod", "i8"): "i32",
    ("cumprod", "u8"): "i32",
    ("cumsum", "i8"): "i32",
    ("cumsum", "u8"): "i32",
    ("logcumsumexp", "f16"): "f32",
    ("matmul", "i8"): "i32",
    ("matmul", "u8"): "i32",
    ("reduce", "i8"): "i32",
    ("reduce", "u8"): "i32",
    ("scatter_elements", "f16"): "f32",
}
"""Per op and type: a type that has a kernel and gives the same result, with casts around."""

_ANY_TYPE = frozenset({"cast", "constant", "iota", "scan", "size", "weight"})
"""Ops that run on all types, or whose body is seen to op by op."""


def missing_kernel(op: Op) -> str | None:
    """The reason why the op has no kernel for its types, if so."""
    casts = casts_around(op)
    for dtype in sorted(_dtypes(op)):
        computed = casts.get(dtype, dtype)
        if computed in MISSING.get(op.name, ()):
            return f"ONNX Runtime has no {computed} kernel for it"
    return None


def casts_around(op: Op) -> dict[DType, DType]:
    """Which types of the op's operands and results to compute in which others.

    That is for types without a kernel (hardly any op has one for bf16 on a CPU), for mixed types,
    which ONNX does not know, and for sums in float64.
    """
    if op.name in _ANY_TYPE:
        return {}
    found = _dtypes(op)
    floats = found & FLOATS
    if op.defn.attributes().get("accumulate") == "f64":
        return {dtype: "f64" for dtype in floats if dtype != "f64"}
    if "bf16" in floats or len(floats) > 1:
        return {dtype: "f32" for dtype in floats if dtype in ("bf16", "f16")}
    return {d: _WIDER[op.name, d] for d in found if (op.name, d) in _WIDER}


def with_dtypes(op: Op, casts: Mapping[DType, DType]) -> Op:
    """The op on values of other types; it has no place in a graph and is only read."""

    def changed(value: Value) -> Value:
        dtype = value.type.dtype
        return Value(value.type.with_dtype(casts.get(dtype, dtype)), value.hint)

    operands = tuple(None if v is None else changed(v) for v in op.operands)
    return Op(op.defn, operands, tuple(map(changed, op.results)), op.body, op.loc)


def _dtypes(op: Op) -> set[DType]:
    return {v.type.dtype for v in (*op.operands, *op.results) if v is not None}
