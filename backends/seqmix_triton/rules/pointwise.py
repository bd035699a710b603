"""Functions of single elements, in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqmix.dtypes import torch_dtype
from seqmix_ir.graph import Op
from seqmix_ir.types import check_dtype
from seqmix_triton.run import GraphRun, Rule

__all__ = ["RULES"]

_NO_BEND = 40.0
"""Where ``log(1 + exp(x))`` is ``x`` in float64 too: torch's own 20 is meant for float32."""


def _of_torch(function: Callable[..., Tensor]) -> Rule:
    """A rule that is a function of torch on the operands, which need no attributes."""

    def rule(run: GraphRun, op: Op, *operands: Tensor) -> Tensor:
        return function(*operands)

    return rule


def _softplus(x: Tensor) -> Tensor:
    return F.softplus(x, threshold=_NO_BEND)


def _floor_divide(x: Tensor, y: Tensor) -> Tensor:
    if x.is_floating_point():
        return torch.floor(x / y)
    return torch.div(x, y, rounding_mode="floor")


def _gelu(run: GraphRun, op: Op, x: Tensor) -> Tensor:
    defn: Any = op.defn
    return F.gelu(x, approximate=defn.approximate)


def _cast(run: GraphRun, op: Op, x: Tensor) -> Tensor:
    defn: Any = op.defn
    return x.to(torch_dtype(check_dtype(defn.dtype)))


def _itself(run: GraphRun, op: Op, x: Tensor) -> Tensor:
    return x


_SAME_NAME = (
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "div",
    "erf", "exp", "expm1", "floor", "log", "log1p", "maximum", "minimum", "mul", "neg", "pow",
    "reciprocal", "relu", "round", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub", "tan", "tanh",
    "where", "not_equal", "greater", "greater_equal", "less", "less_equal",
)  # fmt: skip
_OTHER_NAME: Mapping[str, Callable[..., Tensor]] = {
    "and": torch.logical_and,
    "equal": torch.eq,
    "floor_div": _floor_divide,
    "mod": torch.remainder,
    "not": torch.logical_not,
    "or": torch.logical_or,
    "silu": F.silu,
    "softplus": _softplus,
}
RULES: Mapping[str, Rule] = {
    **{name: _of_torch(getattr(torch, name)) for name in _SAME_NAME},
    **{name: _of_torch(function) for name, function in _OTHER_NAME.items()},
    "cast": _cast,
    "clip_gradient": _itself,
    "gelu": _gelu,
}
