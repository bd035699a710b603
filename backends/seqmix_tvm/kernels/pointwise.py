"""Kernels of groups without an anchor, and of those that put pieces together."""

from __future__ import annotations

from seqmix_ir.dims import Size
from seqmix_ir.graph import Op, Value
from seqmix_ir.ops.rules import normal_axis
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.place import COMPUTED, Index
from seqmix_tvm.plan import is_scalar
from seqmix_tvm.rules.layout import FLAT, number
from seqmix_tvm.rules.pointwise import RULES as POINTWISE

__all__ = ["concat", "pad", "pointwise"]


def pointwise(kernel: Kernel) -> None:
    """Every element of the root, each by itself."""
    root = kernel.group.root.results[0]
    held = kernel.held(root)
    if not held and _is_uniform(kernel):
        kernel.flat(root.type.shape, kernel.store_root)
    else:
        kernel.spread(root.type.shape, kernel.store_root, held)


def _is_uniform(kernel: Kernel) -> bool:
    """Whether all values of a group lie alike, so that one index serves them all."""
    return all(
        op.name in FLAT
        or op.name == "constant"
        or (op.name in POINTWISE and all(_alike(v, op) for v in op.operands))
        for op in kernel.group.ops
    )


def _alike(value: Value | None, op: Op) -> bool:
    return value is None or is_scalar(value) or value.type.shape == op.results[0].type.shape


def concat(kernel: Kernel, op: Op) -> None:
    """One loop nest per operand."""
    (y,) = op.results
    axis = normal_axis(op.defn.attributes()["axis"], y.type.rank)
    start: Size = 0
    for x in op.values:
        _piece(kernel, y, x, axis, start)
        start = start + x.type.shape[axis]


def _piece(kernel: Kernel, y: Value, x: Value, axis: int, start: Size) -> None:
    """Copy ``x`` to where it belongs in ``y``."""

    def copy(index: Index) -> None:
        element = kernel.frame.at(x, index)
        kernel.frame.save(y, _shifted(kernel, index, y, axis, start), element)

    kernel.spread(x.type.shape, copy, kernel.held(y))


def pad(kernel: Kernel, op: Op) -> None:
    """What is before, the operand, what is after."""
    (x,), (y,) = op.values, op.results
    has = op.defn.attributes()
    axis = normal_axis(has["axis"], x.type.rank)
    before, after = has["before"], has["after"]
    if has["before"] != 0:
        _fill(kernel, y, axis, 0, before, has["value"])
    _piece(kernel, y, x, axis, before)
    if after != 0:
        _fill(kernel, y, axis, before + x.type.shape[axis], after, has["value"])


def _fill(kernel: Kernel, y: Value, axis: int, start: Size, size: Size, value: float) -> None:
    shape = (*y.type.shape[:axis], size, *y.type.shape[axis + 1 :])
    element = number(value, COMPUTED[y.type.dtype])

    def put(index: Index) -> None:
        kernel.frame.save(y, _shifted(kernel, index, y, axis, start), element)

    kernel.spread(shape, put, kernel.held(y))


def _shifted(kernel: Kernel, index: Index, y: Value, axis: int, start: Size) -> Index:
    if start == 0 and index.shape == y.type.shape:
        return index
    axes = list(index.axes)
    if start != 0:
        axes[axis] = axes[axis] + kernel.sizes(start)
    return kernel.frame.index(y.type.shape, tuple(axes))
