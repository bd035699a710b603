"""How far two computations of one thing may lie apart, relative to the largest value, per dtype."""

from __future__ import annotations

__all__ = ["MODEL_TOLERANCES", "TOLERANCES", "WEIGHT_TOLERANCES"]

TOLERANCES = {"f64": 1e-10, "f32": 2e-5, "f16": 5e-3, "bf16": 4e-2}
"""Of one op or mixer."""

MODEL_TOLERANCES = {"f64": 1e-9, "f32": 2e-4, "f16": 5e-2, "bf16": 3e-1}
"""Of the logits of a model with dozens of layers."""

WEIGHT_TOLERANCES = {"f16": 2e-2, "bf16": 2e-1, "int8": 3e-1, "int4": 8e-1}
"""Of the logits of such a model whose weights alone have a smaller type."""
