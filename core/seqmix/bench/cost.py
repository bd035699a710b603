"""What a phase needs at least, whoever computes it: operations, and bytes that must be read.

A prompt of S tokens: the mixers over S tokens, and the head for the last of them. A token behind a
past of P: one step, every weight once, and the state. Norms and softmax do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from seqmix.config import ModelConfig
from seqmix.model import Model
from seqmix.state import state_bytes

__all__ = ["Need", "need_of", "weight_bytes"]

_BITS = {"int4": 4, "int8": 8, "bf16": 16, "f16": 16}
"""Of an element of a matrix whose ``weights`` are smaller; scales do not count, tables have 8."""

_TABLE_BITS = 8


@dataclass(frozen=True)
class Need:
    """Multiply-adds times two, and bytes, of one prompt or of one token."""

    flops: int
    bytes: int


def need_of(config: ModelConfig, phase: str, length: int, options: dict[str, Any]) -> Need:
    """The need of ``prefill`` or ``decode`` at a length; no weights are made."""
    with torch.device("meta"):
        model = Model(config)
    weights = weight_bytes(model, options.get("weights"))
    states = sum(state_bytes(spec, 1, length, dtype=model.dtype) for spec in model.state_specs())
    if phase == "decode":
        return Need(model.step_flops(1, length), weights + states)
    others = 2 * (length - 1) * model.embed.weight.numel()
    return Need(model.flops(1, length) - others, weights + states)


def weight_bytes(model: Model, smaller: str | None = None) -> int:
    """Bytes of the weights that every token reads: of an embedding that is no head, one row."""
    bits = 8 * model.dtype.itemsize
    total = 0
    for name, parameter in model.named_parameters():
        if name == "embed.weight" and model.head is not None:
            total += bits * parameter.shape[1]
            continue
        small = _BITS.get(smaller or "", bits) if parameter.dim() == 2 else bits
        least = _TABLE_BITS if name == "embed.weight" else 0
        total += min(max(small, least), bits) * parameter.numel()
    return total // 8
