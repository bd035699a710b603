"""The ops that mix a sequence, and the norms: kernels; ``scan`` and the rest in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from seqmix_ir.graph import Op
from seqmix_triton.ops.attention import attention_forward
from seqmix_triton.ops.causal_conv1d import causal_conv1d_forward
from seqmix_triton.ops.cross_entropy import cross_entropy_forward
from seqmix_triton.ops.linear_attention import linear_attention_forward
from seqmix_triton.ops.linear_scan import linear_scan_forward
from seqmix_triton.ops.long_conv import long_conv_forward
from seqmix_triton.ops.norm import layer_norm_forward, rms_norm_forward
from seqmix_triton.ops.rotary import rotary_forward
from seqmix_triton.ops.selected_attention import selected_attention_forward
from seqmix_triton.rules.wide import widened
from seqmix_triton.run import GraphRun, Rule

__all__ = ["KERNELS", "TORCH", "scan_steps"]


def _with_attributes(function: Callable[..., Any]) -> Rule:
    """A rule of a function that takes attributes by name, and may save more than the results."""

    def rule(run: GraphRun, op: Op, *operands: Tensor | None) -> Any:
        found = function(*operands, **op.defn.attributes())
        return found if isinstance(found, Tensor) else found[: len(op.results)]

    return rule


def _rms_norm(run: GraphRun, op: Op, x: Tensor, weight: Tensor | None) -> Tensor:
    defn: Any = op.defn
    if defn.accumulate == "f64":
        x = widened(x, defn.accumulate)
        weight = None if weight is None else weight.to(x.dtype)
    return rms_norm_forward(x, weight, eps=defn.eps)[0]


def _layer_norm(
    run: GraphRun, op: Op, x: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    defn: Any = op.defn
    if defn.accumulate == "f64":
        x = widened(x, defn.accumulate)
        weight, bias = (None if t is None else t.to(x.dtype) for t in (weight, bias))
    return layer_norm_forward(x, weight, bias, eps=defn.eps)[0]


def scan_steps(run: GraphRun, op: Op, *operands: Tensor) -> tuple[Tensor, ...]:
    """Step by step; what a step is, is run as the graph around it is."""
    defn: Any = op.defn
    body = op.body
    if body is None:
        raise RuntimeError(f"{op.loc}: a scan without a body")
    first = defn.carries + defn.sequences
    carries, constants = operands[: defn.carries], operands[first:]
    steps = [x.movedim(defn.axis, 0) for x in operands[defn.carries : first]]
    length = len(steps[0])
    collected: list[list[Tensor]] = [[] for _ in body.results[defn.carries :]]
    for t in reversed(range(length)) if defn.reverse else range(length):
        out = run.block(body, (*carries, *(x[t] for x in steps), *constants))
        carries = out[: defn.carries]
        for ys, y in zip(collected, out[defn.carries :], strict=True):
            ys.append(y)
    order = -1 if defn.reverse else 1
    return (*carries, *(torch.stack(ys[::order], defn.axis) for ys in collected))


KERNELS: Mapping[str, Rule] = {
    "attention": _with_attributes(attention_forward),
    "causal_conv1d": _with_attributes(causal_conv1d_forward),
    "cross_entropy": _with_attributes(cross_entropy_forward),
    "layer_norm": _layer_norm,
    "linear_attention": _with_attributes(linear_attention_forward),
    "linear_scan": _with_attributes(linear_scan_forward),
    "long_conv": _with_attributes(long_conv_forward),
    "rms_norm": _rms_norm,
    "rotary": _with_attributes(rotary_forward),
    "selected_attention": _with_attributes(selected_attention_forward),
}
TORCH: Mapping[str, Rule] = {
    "scan": scan_steps,
}
