"""Rules of reductions, softmax, running sums and the largest elements."""

from __future__ import annotations

from seqmix_ir import ops
from seqmix_ir.adjoint.table import reshaped, rule, size_of, zeros
from seqmix_ir.builder import Builder
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Op, Value
from seqmix_ir.ops import size_value
from seqmix_ir.ops.rules import normal_axes, normal_axis

__all__: list[str] = []


@rule(ops.Reduce)
def _reduce(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    (x,), defn = op.values, op.defn
    if not isinstance(defn, ops.Reduce):
        raise IRError(f"{op.loc}: '{op.name}' is no reduce")
    axes = normal_axes(defn.axes, x.type.rank)
    kept = tuple(1 if i in axes else s for i, s in enumerate(x.type.shape))
    wide = b(ops.Expand(x.type.shape), reshaped(b, g, kept))
    if defn.kind == "sum":
        return (wide,)
    if defn.kind == "mean":
        count = size_value(b, size_of(tuple(x.type.shape[i] for i in axes)), x.type.dtype)
        return (b(ops.Mul(), wide, b(ops.Reciprocal(), count)),)
    if defn.kind == "prod":
        return (b(ops.Mul(), wide, _others(b, x, axes)),)
    return (b(ops.Mul(), wide, _share(b, x, reshaped(b, op.results[0], kept), axes)),)


def _share(b: Builder, x: Value, extreme: Value, axes: tuple[int, ...]) -> Value:
    """1 at the extreme element; equal ones share."""
    one, zero = (ops.constant(b, v, x.type.dtype) for v in (1.0, 0.0))
    hit = b(ops.Where(), b(ops.Equal(), x, extreme), one, zero)
    return b(ops.Div(), hit, b(ops.Reduce("sum", axes, True), hit))


def _others(b: Builder, x: Value, axes: tuple[int, ...]) -> Value:
    """The product of all elements but one, without a division: those before, those behind."""
    shape = x.type.shape
    order = (*(i for i in range(x.type.rank) if i not in axes), *axes)
    last = b(ops.Transpose(order), x)
    flat = reshaped(
        b,
        last,
        (*(shape[i] for i in order[: -len(axes)]), size_of(tuple(shape[i] for i in axes))),
    )
    before = b(ops.CumProd(-1, True), flat)
    behind = b(ops.CumProd(-1, True, True), flat)
    both = reshaped(b, b(ops.Mul(), before, behind), last.type.shape)
    return b(ops.Transpose(tuple(order.index(i) for i in range(len(order)))), both)


@rule(ops.Softmax)
def _softmax(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    (y,) = op.results
    total = b(ops.Reduce("sum", (op.defn.attributes()["axis"],), True), b(ops.Mul(), g, y))
    return (b(ops.Mul(), y, b(ops.Sub(), g, total)),)


@rule(ops.CumSum)
def _cumsum(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    """The running sum from the other end."""
    defn = op.defn
    if not isinstance(defn, ops.CumSum):
        raise IRError(f"{op.loc}: '{op.name}' is no cumsum")
    return (b(ops.CumSum(defn.axis, defn.exclusive, not defn.reverse, defn.accumulate), g),)


@rule(ops.TopK)
def _topk(b: Builder, op: Op, g: Value | None, _: Value | None) -> tuple[Value | None, ...]:
    """Back to where the elements came from."""
    if g is None:
        return (None,)
    (x,) = op.values
    axis = normal_axis(op.defn.attributes()["axis"], x.type.rank)
    add = ops.ScatterElements(axis, "add")
    return (b(add, zeros(b, x.type), op.results[1], g),)
