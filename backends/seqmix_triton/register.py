"""Make the kernels the CUDA and HIP implementations of the ``seqmix::`` ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import seqmix.ops  # noqa: F401  Binds the ops that are replaced.
from seqmix.eager.adjoint import write_with
from seqmix.op import replace
from seqmix_triton.codegen.training import GraphFunction
from seqmix_triton.lowering import plugin_kernels
from seqmix_triton.ops.attention import attention_backward, attention_forward
from seqmix_triton.ops.causal_conv1d import causal_conv1d_backward, causal_conv1d_forward
from seqmix_triton.ops.cross_entropy import cross_entropy_backward, cross_entropy_forward
from seqmix_triton.ops.linear_attention import (
    linear_attention_backward,
    linear_attention_forward,
)
from seqmix_triton.ops.linear_scan import linear_scan_backward, linear_scan_forward
from seqmix_triton.ops.long_conv import long_conv_backward, long_conv_forward
from seqmix_triton.ops.rotary import rotary_backward, rotary_forward
from seqmix_triton.ops.selected_attention import (
    selected_attention_backward,
    selected_attention_forward,
)

__all__ = ["KERNELS", "register"]

KERNELS: Mapping[str, Callable[..., Any]] = {
    "attention": attention_forward,
    "attention_backward": attention_backward,
    "causal_conv1d": causal_conv1d_forward,
    "causal_conv1d_backward": causal_conv1d_backward,
    "cross_entropy": cross_entropy_forward,
    "cross_entropy_backward": cross_entropy_backward,
    "linear_attention": linear_attention_forward,
    "linear_attention_backward": linear_attention_backward,
    "linear_scan": linear_scan_forward,
    "linear_scan_backward": linear_scan_backward,
    "long_conv": long_conv_forward,
    "long_conv_backward": long_conv_backward,
    "rotary": rotary_forward,
    "rotary_backward": rotary_backward,
    "selected_attention": selected_attention_forward,
    "selected_attention_backward": selected_attention_backward,
}
"""What each op, or its backward pass, runs as; the signatures are those of the core's own."""

_registered: set[str] = set()


def register(device: str = "cuda") -> None:
    """Use the kernels on ``"cuda"`` (HIP devices answer to that name in torch) from now on.

    A recurrent cell of ``seqmix.scan`` trains by generated ones there. Those of plugins too
    (:class:`~seqmix_triton.lowering.Lowering`). A second call changes nothing. ``"cpu"`` is for
    the interpreter. Raises :class:`~seqmix.errors.PluginError` when another package has replaced
    one of the ops.
    """
    if device in _registered:
        return
    kernels = dict(KERNELS)
    for plugin in plugin_kernels():
        kernels |= plugin.replaces
    for name, kernel in kernels.items():
        replace(name, device, kernel)
    write_with(device, GraphFunction)
    _registered.add(device)
