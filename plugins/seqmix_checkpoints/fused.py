"""Projections that lie in one tensor: GPT-NeoX keeps query, key and value together, head by head.

H heads, K head size, D model width: the fused weight is ``[H * 3 * K, D]``, its bias one axis less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from seqmix.errors import CheckpointError
from seqmix_checkpoints.tensors import FileTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PARTS", "join_fused", "split_fused"]

PARTS = ("query", "key", "value")
FUSED = ".query_key_value."


def split_fused(tensors: Mapping[str, FileTensor], heads: int) -> dict[str, FileTensor]:
    """``tensors`` with each fused one as three, called ``name (query)`` and so on.

    Each part reads the whole tensor when it is asked for. Raises CheckpointError when the rows are
    no multiple of three times the heads.
    """
    result: dict[str, FileTensor] = {}
    for name, tensor in tensors.items():
        if FUSED not in name:
            result[name] = tensor
            continue
        rows, *rest = tensor.shape or (0,)
        if not rows or rows % (3 * heads):
            raise CheckpointError(
                f"{tensor.path}: tensor '{name}' {list(tensor.shape)} should have query, key and "
                f"value rows of {heads} heads, a multiple of {3 * heads}; configuration and "
                "weights are of different models"
            )
        for number, part in enumerate(PARTS):
            change = _part(heads, number)
            result[f"{name} ({part})"] = tensor.changed(change, (rows // 3, *rest))
    return result


def join_fused(tensors: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    """The inverse of :func:`split_fused`, for tensors in memory."""
    result = {}
    for name, tensor in tensors.items():
        if FUSED not in name:
            result[name] = tensor
            continue
        whole, _, part = name.partition(" (")
        if part == "query)":
            pieces = [tensors[f"{whole} ({p})"] for p in PARTS]
            by_head = [t.reshape(heads, 1, t.shape[0] // heads, *t.shape[1:]) for t in pieces]
            result[whole] = torch.cat(by_head, 1).flatten(0, 2)
    return result


def _part(heads: int, number: int) -> Callable[[NDArray[Any]], NDArray[Any]]:
    def change(fused: NDArray[Any]) -> NDArray[Any]:
        rows, rest = fused.shape[0], fused.shape[1:]
        by_head = fused.reshape(heads, 3, rows // heads // 3, *rest)
        return np.ascontiguousarray(by_head[:, number]).reshape(rows // 3, *rest)

    change.__name__ = f"part_{number}_of_{heads}"
    return change
