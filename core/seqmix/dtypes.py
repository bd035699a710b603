"""Element types: IR names and torch dtypes, both ways."""

from __future__ import annotations

import torch

from seqmix.errors import ConfigError, did_you_mean
from seqmix_ir.types import DType

__all__ = ["dtype_name", "torch_dtype"]

_TORCH: dict[DType, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _TORCH.items()}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of an IR dtype name; ConfigError when there is none."""
    for known, dtype in _TORCH.items():
        if known == name:
            return dtype
    raise ConfigError(
        f"unknown dtype {name!r}{did_you_mean(name, _TORCH)}; known: {', '.join(_TORCH)}"
    )


def dtype_name(dtype: torch.dtype) -> DType:
    """The IR name of a torch dtype; ConfigError when the IR has none."""
    if dtype not in _NAMES:
        raise ConfigError(f"the IR has no dtype for {dtype}; known: {', '.join(map(str, _NAMES))}")
    return _NAMES[dtype]
