"""Rules for matrix products, normalization, reductions and softmax."""

from __future__ import annotations

from typing import Any

from seqmix.capture.aten import Call, aten
from seqmix_ir.dims import Size
from seqmix_ir.graph import Value
from seqmix_ir.ops import (
    Add,
    Exp,
    Gather,
    Linear,
    Log,
    Matmul,
    Mul,
    NotEqual,
    Reduce,
    Reshape,
    Slice,
    Softmax,
    Squeeze,
    Sub,
    Transpose,
    Unsqueeze,
    constant,
)

__all__: list[str] = []


@aten("linear")
def _linear(c: Call, x: Value, weight: Value, bias: Value | None = None) -> Value:
    return c.b(Linear(), x, weight, bias)


@aten("matmul", "bmm", "mm", "__matmul__", "linalg_matmul")
def _matmul(c: Call, x: Value, y: Value) -> Value:
    """A product in which a vector stands for a matrix of one row or column."""
    row, column = x.type.rank == 1, y.type.rank == 1
    x = c.b(Unsqueeze((0,)), x) if row else x
    y = c.b(Unsqueeze((1,)), y) if column else y
    out = c.b(Matmul(), x, y)
    gone = ([out.type.rank - 2] if row else []) + ([out.type.rank - 1] if column else [])
    return c.b(Squeeze(tuple(gone)), out) if gone else out


@aten("mv", "dot")
def _vector_product(c: Call, x: Value, y: Value) -> Value:
    return _matmul(c, x, y)


@aten("outer", "ger")
def _outer(c: Call, x: Value, y: Value) -> Value:
    return c.b(Mul(), c.b(Unsqueeze((1,)), x), c.b(Unsqueeze((0,)), y))


@aten("addmm", "baddbmm")
def _addmm(c: Call, x: Value, y: Value, z: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    product = c.b(Matmul(), y, z)
    if alpha != 1:
        product = c.b(Mul(), product, c.scalar(alpha, c.dtype))
    if beta != 1:
        x = c.b(Mul(), x, c.scalar(beta, c.dtype))
    return c.b(Add(), x, product)


@aten("einsum")
def _einsum(c: Call, equation: str, operands: list[Value], **options: Any) -> Value:
    """Two operands with letters only: transposes around one batched matrix product."""
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    letters = "".join([*terms, output])
    plain = letters.isalpha() and all(len(set(t)) == len(t) for t in [*terms, output])
    if len(operands) != 2 or not output or not plain:
        raise c.refuse(f"'{equation}' is not in the IR", "use two operands, or matmul")
    left, right = terms
    alone = (set(left) ^ set(right)) - set(output)
    if alone:
        raise c.refuse(f"'{equation}' sums {sorted(alone)} of one operand", "sum it before")
    sizes = dict(zip(left + right, operands[0].type.shape + operands[1].type.shape, strict=True))
    batch = [n for n in left if n in right and n in output]
    inner = [n for n in left if n in right and n not in output]
    rows, columns = [n for n in left if n not in right], [n for n in right if n not in left]
    x = _matrix(c, operands[0], left, [batch, rows, inner], sizes)
    y = _matrix(c, operands[1], right, [batch, inner, columns], sizes)
    order = [*batch, *rows, *columns]
    out = c.b(Reshape(tuple(sizes[n] for n in order)), c.b(Matmul(), x, y))
    perm = tuple(order.index(n) for n in output)
    return out if list(perm) == sorted(perm) else c.b(Transpose(perm), out)


def _matrix(c: Call, x: Value, term: str, groups: list[list[str]], sizes: dict[str, Size]) -> Value:
    """``x`` as a batch of matrices: the first group's axes, then each other group joined."""
    order = [n for group in groups for n in group]
    perm = tuple(term.index(n) for n in order)
    if list(perm) != sorted(perm):
        x = c.b(Transpose(perm), x)
    joined: list[Size] = [sizes[n] for n in groups[0]]
    for group in groups[1:]:
        size: Size = 1
        for n in group:
            size = size * sizes[n]
        joined.append(size)
    return x if tuple(joined) == x.type.shape else c.b(Reshape(tuple(joined)), x)


def _reduced(c: Call, kind: str, x: Value, axes: Any, keepdims: bool) -> Value:
    axes = [axes] if isinstance(axes, int) else list(axes or range(x.type.rank))
    normal = tuple(sorted(axis % x.type.rank for axis in axes)) if x.type.rank else ()
    return c.b(Reduce(kind, normal, keepdims), x) if normal else x


@aten("sum", "sum.dim_IntList")
def _sum(c: Call, x: Value, axes: Any = None, keepdims: bool = False, **options: Any) -> Value:
    return _reduced(c, "sum", c.cast(x, c.dtype), axes, keepdims)


@aten("mean", "mean.dim")
def _mean(c: Call, x: Value, axes: Any = None, keepdims: bool = False, **options: Any) -> Value:
    return _reduced(c, "mean", c.cast(x, c.dtype), axes, keepdims)


@aten("prod", "prod.dim_int")
def _prod(c: Call, x: Value, axes: Any = None, keepdims: bool = False, **options: Any) -> Value:
    return _reduced(c, "prod", c.cast(x, c.dtype), axes, keepdims)


@aten("amax", "max")
def _amax(c: Call, x: Value, axes: Any = None, keepdims: bool = False) -> Value:
    return _reduced(c, "max", x, axes, keepdims)


@aten("amin", "min")
def _amin(c: Call, x: Value, axes: Any = None, keepdims: bool = False) -> Value:
    return _reduced(c, "min", x, axes, keepdims)


@aten("any", "any.dim", "any.dims")
def _any(c: Call, x: Value, axes: Any = None, keepdims: bool = False) -> Value:
    return _reduced(c, "any", _truth(c, x), axes, keepdims)


@aten("all", "all.dim", "all.dims")
def _all(c: Call, x: Value, axes: Any = None, keepdims: bool = False) -> Value:
    return _reduced(c, "all", _truth(c, x), axes, keepdims)


def _truth(c: Call, x: Value) -> Value:
    return x if x.type.dtype == "bool" else c.b(NotEqual(), x, c.scalar(0, x.type.dtype))


@aten("softmax.int", "_softmax")
def _softmax(c: Call, x: Value, axis: int, *rest: Any, **options: Any) -> Value:
    return c.b(Softmax(axis % x.type.rank), c.cast(x, c.dtype))


@aten("log_softmax.int", "_log_softmax")
def _log_softmax(c: Call, x: Value, axis: int, *rest: Any, **options: Any) -> Value:
    x = c.cast(x, c.dtype)
    gap = c.b(Sub(), x, _reduced(c, "max", x, axis, True))
    total = _reduced(c, "sum", c.b(Exp(), gap), axis, True)
    return c.b(Sub(), gap, c.b(Log(), total))


@aten("linalg_cross", "cross")
def _cross(c: Call, x: Value, y: Value, *given: Any, **options: Any) -> Value:
    """The product of vectors in space, which lie along an axis of size 3."""
    default = None if "linalg" not in str(c.node.target) else -1
    axis = given[0] if given else options.get("dim", default)
    axis = c.shape.index(3) if axis is None else axis % len(c.shape)
    turned = [
        [c.b(Gather(axis), v, constant(c.b, order, "i64")) for v in (x, y)]
        for order in ((1, 2, 0), (2, 0, 1))
    ]
    (x1, y1), (x2, y2) = turned
    return c.b(Sub(), c.b(Mul(), x1, y2), c.b(Mul(), x2, y1))


@aten("diff")
def _diff(c: Call, x: Value, n: int = 1, axis: int = -1, *more: Value | None) -> Value:
    if any(edge is not None for edge in more):
        raise c.refuse("diff with edges is not in the IR", "join them with torch.cat")
    axis = axis % x.type.rank
    for _ in range(n):
        size = x.type.shape[axis]
        x = c.b(Sub(), c.b(Slice(axis, 1, size), x), c.b(Slice(axis, 0, size - 1), x))
    return x
