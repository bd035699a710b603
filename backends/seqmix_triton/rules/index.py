"""Elements by index, and the order of elements, in torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqmix_ir.graph import Op
from seqmix_triton.run import GraphRun, Rule

__all__ = ["RULES"]


def _gather(run: GraphRun, op: Op, data: Tensor, indices: Tensor) -> Tensor:
    defn: Any = op.defn
    axis = defn.axis % data.ndim
    places = _from_the_start(indices, data.shape[axis])
    if axis == 0 and data.ndim == 2:
        return F.embedding(places, data)
    picked = data.index_select(axis, places.reshape(-1))
    return picked.reshape(*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])


def _gather_elements(run: GraphRun, op: Op, data: Tensor, indices: Tensor) -> Tensor:
    defn: Any = op.defn
    axis = defn.axis % data.ndim
    return data.gather(axis, _from_the_start(indices, data.shape[axis]))


def _scatter_elements(
    run: GraphRun, op: Op, data: Tensor, indices: Tensor, updates: Tensor
) -> Tensor:
    defn: Any = op.defn
    axis = defn.axis % data.ndim
    places = _from_the_start(indices, data.shape[axis])
    if defn.reduction == "none":
        return data.scatter(axis, places, updates)
    if defn.reduction == "add":
        return data.scatter_add(axis, places, updates)
    return data.scatter_reduce(axis, places, updates, "amax", include_self=True)


def _from_the_start(indices: Tensor, size: int) -> Tensor:
    """Negative indices count from the end; torch wants int64 and no negative ones."""
    wide = indices.long()
    return torch.where(wide < 0, wide + size, wide)


def _top_k(run: GraphRun, op: Op, x: Tensor) -> tuple[Tensor, Tensor]:
    """By a stable sort: of equal elements the first one comes first, unlike in torch's topk."""
    defn: Any = op.defn
    values, indices = torch.sort(x, dim=defn.axis, descending=defn.largest, stable=True)
    k = run.size(defn.k)
    return values.narrow(defn.axis, 0, k), indices.narrow(defn.axis, 0, k)


def _argmax(run: GraphRun, op: Op, x: Tensor) -> Tensor:
    defn: Any = op.defn
    return torch.argmax(x, defn.axis, keepdim=defn.keepdims)


def _argmin(run: GraphRun, op: Op, x: Tensor) -> Tensor:
    defn: Any = op.defn
    return torch.argmin(x, defn.axis, keepdim=defn.keepdims)


RULES: Mapping[str, Rule] = {
    "argmax": _argmax,
    "argmin": _argmin,
    "gather": _gather,
    "gather_elements": _gather_elements,
    "scatter_elements": _scatter_elements,
    "top_k": _top_k,
}
