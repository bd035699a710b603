"""Constants, and what moves elements without computing: mostly views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqmix.dtypes import torch_dtype
from seqmix_ir.graph import Op
from seqmix_ir.types import check_dtype
from seqmix_triton.run import GraphRun, Rule

__all__ = ["RULES"]


def _weight(run: GraphRun, op: Op) -> Tensor:
    defn: Any = op.defn
    return run.weight(defn.key)


def _constant(run: GraphRun, op: Op) -> Tensor:
    defn: Any = op.defn
    dtype = torch_dtype(check_dtype(defn.dtype))
    return run.once(op, lambda: torch.tensor(defn.value, dtype=dtype, device=run.device))


def _size(run: GraphRun, op: Op) -> Tensor:
    defn: Any = op.defn
    return torch.full((), run.size(defn.value), dtype=torch.int64, device=run.device)


def _iota(run: GraphRun, op: Op) -> Tensor:
    defn: Any = op.defn
    numbers = torch.arange(run.size(defn.length), device=run.device)
    return numbers.to(torch_dtype(check_dtype(defn.dtype)))


def _reshape(run: GraphRun, op: Op, x: Tensor) -> Tensor:
    defn: Any = op.defn
    return x.reshape(run.shape(defn.shape))


def _transpose(run: GraphRun, op: Op, x: Tensor) -> Tensor:
    defn: Any = op.defn
    return x.permute(defn.perm)


def _expand(run: GraphRun, op: Op, x: Tensor) -> Tensor:
    defn: Any = op.defn
    return x.expand(run.shape(defn.shape))


def _unsqueeze(run: GraphRun, op: Op, x: Tensor) -> Tensor:
    defn: Any = op.defn
    rank = op.results[0].type.rank
    for axis in sorted(axis % rank for axis in defn.axes):
        x = x.unsqueeze(axis)
    return x


def _squeeze(run: GraphRun, op: Op, x: Tensor) -> Tensor:
    defn: Any = op.defn
    return x.squeeze(tuple(defn.axes))


def _concat(run: GraphRun, op: Op, *xs: Tensor) -> Tensor:
    defn: Any = op.defn
    return torch.cat(xs, defn.axis)


def _slice(run: GraphRun, op: Op, x: Tensor) -> Tensor:
    defn: Any = op.defn
    axis = defn.axis % x.ndim
    start, stop = run.size(defn.start), run.size(defn.stop)
    if defn.step == 1:
        return x.narrow(axis, start, stop - start)
    return x[(*[slice(None)] * axis, slice(start, stop, defn.step))]


def _pad(run: GraphRun, op: Op, x: Tensor) -> Tensor:
    defn: Any = op.defn
    after = x.ndim - 1 - defn.axis % x.ndim
    margins = (run.size(defn.before), run.size(defn.after))
    if x.dtype == torch.bool:
        padded = F.pad(x.to(torch.uint8), (*(0, 0) * after, *margins), value=bool(defn.value))
        return padded.to(torch.bool)
    return F.pad(x, (*(0, 0) * after, *margins), value=defn.value)


RULES: Mapping[str, Rule] = {
    "concat": _concat,
    "constant": _constant,
    "expand": _expand,
    "iota": _iota,
    "pad": _pad,
    "reshape": _reshape,
    "size": _size,
    "slice": _slice,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "unsqueeze": _unsqueeze,
    "weight": _weight,
}
