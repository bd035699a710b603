"""Input-dependent convolution: every token mixes a filter of its own from a few learned ones.

Sizes: B batch, S sequence, D model width, H heads, V channels of a head, M filters, L taps.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from seqmix.branches import linear, mask_padding
from seqmix.config import Strict
from seqmix.context import Context
from seqmix.flops import convolution_flops
from seqmix.layers import equal_parts, wide
from seqmix.mixer import SequenceMixer
from seqmix.state import State, StateSpec
from seqmix_gated_conv.history import convolve, history_spec

__all__ = ["InputDependentConv", "InputDependentConvConfig"]


class InputDependentConvConfig(Strict):
    """Options of :class:`InputDependentConv`."""

    filters: PositiveInt = 4
    """Learned filters M, of which every token mixes its own."""
    taps: PositiveInt = 64
    """Length L of a filter. What lies further back adds nothing; any L will do."""
    heads: PositiveInt = 1
    """Groups of channels; a token has one mixture per head."""
    shared: bool = False
    """Whether all channels of a head have the same M filters, or each its own."""
    mixture: Literal["softmax", "sigmoid", "linear"] = "softmax"
    """What turns the projection of a token into the weights of its mixture."""
    bias: bool = False
    """Biases of the input and the output projection; the mixture always has one."""


class InputDependentConv(SequenceMixer):
    """``y_t = W_o sum_l k_t[l] u_{t-l}`` with ``k_t = sum_m a_m(x_t) w_m`` and ``u = W_u x``.

    Zoology (Arora et al. 2023, appendix A) counts as input-dependent those convolutions whose
    filter is a linear combination of projections of the input, as in Yang et al. (2020), where one
    mixture is made of a whole image by pooling over it. Pooling over a sequence would look ahead,
    so here each token's own projection gives the weights ``a(x_t)``, per head: softmax, or sigmoid
    as in Yang et al., or as they are. All M filters are applied to the whole sequence and mixed
    afterwards, which is the same sum, since ``a`` does not depend on the lag; so the cost is M
    convolutions, whatever L is. The weights depend on x_t alone: which lags count is decided where
    the output is, not by what stands at those lags, unlike in attention.

    The state is the last L - 1 of u, ``[B, D, L - 1]`` in the model's dtype, of one size at any
    length. Sums are float32 whatever that dtype. Long ones are by FFT, so causal to rounding.
    """

    Config = InputDependentConvConfig
    exact_causality = False

    def __init__(self, config: InputDependentConvConfig, width: int) -> None:
        """Three projections and M filters; ConfigError when ``heads`` does not divide the width."""
        super().__init__()
        self.size = equal_parts(width, config.heads, "mixer 'input_dependent_conv': width", "heads")
        self.config = config
        rows = config.heads if config.shared else width
        self.input = linear(width, width, config.bias)
        self.mixture = linear(width, config.filters * config.heads, bias=True)
        self.filter = nn.Parameter(torch.empty(config.filters, rows, config.taps))
        self.output = linear(width, width, config.bias)
        nn.init.normal_(self.filter, std=1 / math.sqrt(config.taps))

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Mix ``x [B, S, D]``; ``state`` is not changed, so pieces of a sequence can be trained."""
        M, H = self.config.filters, self.config.heads
        sizes = (x.shape[0], x.shape[1], M, H)
        found, history = convolve(
            self.input(x), self._filter_of_each_channel(), state["history"], ctx, grows=False
        )
        weights = self._weights(self.mixture(x).reshape(sizes))
        found = wide(found).reshape(*sizes, self.size)
        mixed = (found * weights.unsqueeze(-1)).sum(2)
        y = self.output(mixed.flatten(2).to(x.dtype))
        return mask_padding(y, ctx), {"history": history}

    def state_spec(self) -> dict[str, StateSpec]:
        """The last L - 1 inputs of the convolution, ``[B, D, L - 1]``."""
        return {"history": history_spec(self.input.weight.shape[0], self.config.taps)}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Every kind of mixture, shared filters, shorter and longer than the sequences tried."""
        return [
            {"filters": 3, "taps": 20, "heads": 2},
            {"filters": 1, "taps": 1, "mixture": "linear", "bias": True},
            {"filters": 5, "taps": 4, "heads": 6, "shared": True, "mixture": "sigmoid"},
        ]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Projections, M convolutions by taps or transforms, whichever is less, and mixing."""
        return self._flops(batch_size, seq_len, 0)

    def step_flops(self, batch_size: int, past: int) -> int:
        """One product per tap that reaches a token, and per filter."""
        return self._flops(batch_size, 1, past)

    def _flops(self, batch_size: int, seq_len: int, past: int) -> int:
        width, M = self.input.weight.shape[0], self.config.filters
        layers = (self.input, self.mixture, self.output)
        per_token = sum(layer.weight.numel() for layer in layers) + M * width
        found = convolution_flops(batch_size, M * width, seq_len, self.config.taps, past)
        return 2 * batch_size * seq_len * per_token + found

    def _filter_of_each_channel(self) -> Tensor:
        """``[M * D, L]``; shared filters stand there once per channel of their head."""
        if not self.config.shared:
            return self.filter.flatten(0, 1)
        return self.filter.unsqueeze(2).expand(-1, -1, self.size, -1).flatten(0, 2)

    def _weights(self, mixture: Tensor) -> Tensor:
        """What each filter counts, ``[B, S, M, H]`` in float32."""
        match self.config.mixture:
            case "softmax":
                return torch.softmax(wide(mixture), dim=2)
            case "sigmoid":
                return torch.sigmoid(wide(mixture))
            case "linear":
                return wide(mixture)
