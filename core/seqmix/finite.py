"""Weights that are no numbers: a model that diverged, or a conversion that went wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from seqmix.errors import BackendError
from seqmix.weights import Weights

__all__ = ["find_nan"]

_MOST_SHOWN = 8
"""Weights that are listed by name: one NaN in an embedding spreads to every weight in training."""


def find_nan(where: str, weights: Weights) -> list[str]:
    """Notes on weights that hold infinity; BackendError for those that hold NaN.

    A NaN is never meant. Infinity may be: a mask that is added to logits holds -inf.
    """
    nan, infinite = [], []
    for name in weights.names():
        tensor = weights.torch(name)
        if not tensor.is_floating_point() or _sums_up(tensor):
            continue
        if count := int(tensor.isnan().sum()):
            first = torch.nonzero(tensor.isnan())[0].tolist()
            nan.append(f"'{name}' ({count} of {tensor.numel()} numbers, the first at {first})")
        elif count := int(tensor.isinf().sum()):
            infinite.append(f"weight '{name}' holds infinity: {count} of {tensor.numel()} numbers")
    if nan:
        more = f" and {len(nan) - _MOST_SHOWN} more" if len(nan) > _MOST_SHOWN else ""
        raise BackendError(
            f"{where}: weights hold NaN: {', '.join(nan[:_MOST_SHOWN])}{more}; train or convert "
            "the model again, or pass check_weights=False to compile it as it is"
        )
    return infinite


def _sums_up(tensor: Tensor) -> bool:
    """Whether the sum is finite, and so is every number: one pass that writes nothing."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return bool(tensor.sum(dtype=wide).isfinite())
