"""The branches and norms that belong to the core: SwiGLU, MLP, RMS and layer normalization.

Sizes: B batch, S sequence, D model width, N hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from seqmix.config import INIT_STD, NormConfig, Strict
from seqmix.context import Context
from seqmix.mixer import SequenceMixer
from seqmix.state import State

__all__ = [
    "INIT_STD",
    "MLP",
    "LayerNorm",
    "RMSNorm",
    "SwiGLU",
    "linear",
    "make_norm",
    "mask_padding",
]


class RMSNorm(nn.Module):
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last axis, computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        """Start with a weight of ones."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``x [..., D]``; torch widens half precision itself."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class LayerNorm(nn.Module):
    """Normalization to mean 0 and variance 1 over the last axis, then a weight and maybe a bias."""

    def __init__(self, width: int, eps: float, bias: bool = True) -> None:
        """Start with a weight of ones and a bias of zeros."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``x [..., D]``; torch reduces half precision in float32."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


Activation: TypeAlias = Literal["gelu", "gelu_tanh", "relu", "silu"]


class SwiGLUConfig(Strict):
    """``hidden`` is the width between the projections, ``activation`` that of the gate.

    Fresh weights are normal: ``init_std`` into the hidden width, ``down_init_std`` out of it
    (by default the same).
    """

    hidden: PositiveInt
    activation: Activation = "silu"
    bias: bool = False
    init_std: float = Field(default=INIT_STD, gt=0)
    down_init_std: float | None = Field(default=None, gt=0)


class SwiGLU(SequenceMixer):
    """The gated feed-forward branch ``down(activation(gate(x)) * up(x))`` (Shazeer 2020).

    SwiGLU proper has silu, GEGLU has gelu, by the error function; ReGLU has relu.
    """

    Config = SwiGLUConfig

    def __init__(self, config: SwiGLUConfig, width: int) -> None:
        """Three projections between ``width`` and ``config.hidden``."""
        super().__init__()
        std = config.init_std
        self.activation = _ACTIVATIONS[config.activation]
        self.gate = linear(width, config.hidden, config.bias, std)
        self.up = linear(width, config.hidden, config.bias, std)
        self.down = linear(config.hidden, width, config.bias, config.down_init_std or std)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Token by token; there is no state."""
        return mask_padding(self.down(self.activation(self.gate(x)) * self.up(x)), ctx), {}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """One hidden width, with and without biases, two activations."""
        return [{"hidden": 40}, {"hidden": 7, "bias": True, "activation": "gelu"}]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Three matrix products per token."""
        return 2 * batch_size * seq_len * 3 * self.up.weight.numel()


class MLPConfig(Strict):
    """``hidden`` is the width between the projections."""

    hidden: PositiveInt
    activation: Activation = "gelu"
    bias: bool = True


class MLP(SequenceMixer):
    """The plain feed-forward branch ``down(activation(up(x)))``."""

    Config = MLPConfig

    def __init__(self, config: MLPConfig, width: int) -> None:
        """Two projections between ``width`` and ``config.hidden``."""
        super().__init__()
        self.activation = _ACTIVATIONS[config.activation]
        self.up = linear(width, config.hidden, config.bias)
        self.down = linear(config.hidden, width, config.bias)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Token by token; there is no state."""
        return mask_padding(self.down(self.activation(self.up(x))), ctx), {}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """One hidden width, with and without biases."""
        return [{"hidden": 40}, {"hidden": 7, "bias": False}]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Two matrix products per token."""
        return 2 * batch_size * seq_len * 2 * self.up.weight.numel()


def make_norm(config: NormConfig, width: int) -> nn.Module:
    """The normalization that a configuration asks for."""
    if config.kind == "rms":
        return RMSNorm(width, config.eps)
    return LayerNorm(width, config.eps, config.bias)


def linear(inputs: int, outputs: int, bias: bool, std: float = INIT_STD) -> nn.Linear:
    """A projection with normal weights of standard deviation ``std`` and a zero bias."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=std)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def mask_padding(y: Tensor, ctx: Context) -> Tensor:
    """``y [B, S, D]`` with 0 at padding, as the padding law wants it."""
    if not ctx.may_be_padded:
        return y
    return torch.where(ctx.valid.unsqueeze(-1), y, torch.zeros_like(y))


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
}
