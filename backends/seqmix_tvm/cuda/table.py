"""Kernels for a GPU by the name of the op that they are built around.

Those that are not here are written as for a CPU: their loops become threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from seqmix_ir.graph import Op
from seqmix_ir.types import TensorType
from seqmix_tvm import kernels
from seqmix_tvm.cuda import (
    attention,
    convolutions,
    linear,
    linear_attention,
    products,
    recurrences,
    rows,
    scan,
)
from seqmix_tvm.kernel import Kernel

__all__ = ["KERNELS", "SCRATCH", "write_kernel"]

KERNELS: Mapping[str, Callable[[Kernel, Op], None]] = {
    **kernels.KERNELS,
    "argmax": rows.argmax,
    "attention": attention.attention,
    "causal_conv1d": convolutions.causal_conv1d,
    "linear": linear.linear,
    "linear_attention": linear_attention.linear_attention,
    "linear_scan": recurrences.linear_scan,
    "long_conv": convolutions.long_conv,
    "matmul": products.matmul,
    "scan": scan.scan,
}

SCRATCH: Mapping[str, Callable[[Op], list[TensorType]]] = {"scan": scan.scan_scratch}
"""Tensors that kernels need for themselves."""


def write_kernel(kernel: Kernel) -> None:
    """Write the loops of a group; there are none where nothing is stored."""
    kernels.write_kernel(kernel, KERNELS)
