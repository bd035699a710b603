"""Kernels by the name of the op that they are built around."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from seqmix_ir.graph import Op
from seqmix_ir.types import TensorType
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.kernels import (
    attention,
    causal_conv1d,
    linear_attention,
    linear_scan,
    long_conv,
    matmul,
    norm,
    pointwise,
    product,
    reduction,
    scan,
    scatter,
)
from seqmix_tvm.plan import is_leaf
from seqmix_tvm.rules import RULES

__all__ = ["KERNELS", "SCRATCH", "missing_kernel", "write_kernel"]

Write: TypeAlias = "Callable[[Kernel, Op], None]"

KERNELS: Mapping[str, Write] = {
    "argmax": reduction.argmax,
    "attention": attention.attention,
    "causal_conv1d": causal_conv1d.causal_conv1d,
    "concat": pointwise.concat,
    "cumsum": reduction.cumsum,
    "layer_norm": norm.layer_norm,
    "linear": product.linear,
    "linear_attention": linear_attention.linear_attention,
    "linear_scan": linear_scan.linear_scan,
    "long_conv": long_conv.long_conv,
    "matmul": matmul.matmul,
    "pad": pointwise.pad,
    "reduce": reduction.reduce,
    "rms_norm": norm.rms_norm,
    "scan": scan.scan,
    "scatter_elements": scatter.scatter_elements,
    "softmax": norm.softmax,
}

_MISSING: Mapping[str, Callable[[Op], str | None]] = {
    "attention": attention.missing_attention,
    "causal_conv1d": causal_conv1d.missing_causal_conv1d,
    "linear_attention": linear_attention.missing_linear_attention,
    "long_conv": long_conv.missing_long_conv,
}
"""Kernels that do not take all operands: what they say of an op."""

SCRATCH: Mapping[str, Callable[[Op], list[TensorType]]] = {
    "long_conv": long_conv.long_conv_scratch,
    "scan": scan.scan_scratch,
}
"""Tensors that kernels need for themselves."""


def missing_kernel(op: Op) -> str | None:
    """Why an op has neither a rule nor a kernel; None where it has."""
    if op.name in RULES or is_leaf(op):
        return None
    if op.name not in KERNELS:
        return f"the backend has no kernel for '{op.name}'"
    missing = _MISSING.get(op.name)
    return missing(op) if missing is not None else None


def write_kernel(kernel: Kernel, table: Mapping[str, Write] = KERNELS) -> None:
    """Write the loops of a group from a table of kernels; none where nothing is stored."""
    if all(0 in value.type.shape for value in kernel.group.results):
        return
    anchor = kernel.group.anchor
    if anchor is None:
        pointwise.pointwise(kernel)
    else:
        table[anchor.name](kernel, anchor)
