"""Matrix products, convolutions and Fourier transforms: the libraries behind torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqmix_ir.graph import Op
from seqmix_triton.rules.wide import widened
from seqmix_triton.run import GraphRun, Rule

__all__ = ["RULES"]


def _linear(run: GraphRun, op: Op, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    defn: Any = op.defn
    if defn.accumulate != "f32":
        x, weight = widened(x, defn.accumulate), widened(weight, defn.accumulate)
        bias = None if bias is None else widened(bias, defn.accumulate)
    return F.linear(x, weight, bias)


def _matmul(run: GraphRun, op: Op, x: Tensor, y: Tensor) -> Tensor:
    defn: Any = op.defn
    if defn.accumulate == "f32":
        return x @ y
    return widened(x, defn.accumulate) @ widened(y, defn.accumulate)


def _conv1d(run: GraphRun, op: Op, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    defn: Any = op.defn
    if defn.accumulate != "f32":
        x, weight = widened(x, defn.accumulate), widened(weight, defn.accumulate)
        bias = None if bias is None else widened(bias, defn.accumulate)
    padded = F.pad(x, (defn.before, defn.after)) if defn.before or defn.after else x
    return F.conv1d(
        padded, weight, bias, stride=defn.stride, dilation=defn.dilation, groups=defn.groups
    )


def _rfft(run: GraphRun, op: Op, x: Tensor) -> Tensor:
    defn: Any = op.defn
    return torch.view_as_real(torch.fft.rfft(widened(x, "f32"), run.size(defn.length)))


def _irfft(run: GraphRun, op: Op, x: Tensor) -> Tensor:
    defn: Any = op.defn
    spectrum = torch.view_as_complex(widened(x, "f32").contiguous())
    samples: Tensor = torch.fft.irfft(spectrum, run.size(defn.length))
    return samples


RULES: Mapping[str, Rule] = {
    "conv1d": _conv1d,
    "irfft": _irfft,
    "linear": _linear,
    "matmul": _matmul,
    "rfft": _rfft,
}
