"""sLSTM in its original block: four gates, two of them behind a convolution, and a norm per head.

Sizes: B batch, S sequence, D model width, H heads, K size of a head, W taps.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from seqmix.branches import mask_padding
from seqmix.config import Strict
from seqmix.context import Context
from seqmix.layers import CausalConv, HeadNorm, HeadwiseLinear, equal_parts, raised, wide
from seqmix.mixer import SequenceMixer
from seqmix.state import State, StateSpec
from seqmix_xlstm.initial import power_law_, small_init_
from seqmix_xlstm.slstm import slstm

__all__ = ["SLSTM", "SLSTMConfig"]

_FORGET = 1  # The place of the forget gate among input, forget, cell input and output.


class SLSTMConfig(Strict):
    """Options of :class:`SLSTM`; the defaults are the paper's."""

    heads: PositiveInt = 4
    conv_taps: NonNegativeInt = 4
    """Taps of the convolution in front of input and forget gate; 0 for none."""
    forget_gate: Literal["sigmoid", "exp"] = "sigmoid"
    clip: float = Field(default=10.0, ge=0)
    """Gradients that flow back through R are clipped to this, element by element; 0 for none."""
    norm_eps: float = Field(default=1e-5, gt=0)
    block: NonNegativeInt = 0
    blocks: PositiveInt = 1
    """This block and how many there are: fresh forget gates depend on the depth."""

    @model_validator(mode="after")
    def _block_exists(self) -> Self:
        if self.block >= self.blocks:
            raise ValueError(f"block = {self.block} must be below blocks = {self.blocks}")
        return self


class SLSTM(SequenceMixer):
    """``y = norm(slstm(x))`` per head (Beck et al. 2024, figure 10), without norm and residual.

    Each gate is a block-diagonal projection and a bias, plus R times the last h. There is no
    projection behind the norm: a feed-forward branch follows. The state h, c, n, m is float32
    ``[B, H, K]`` whatever the model's dtype; beside it stands the tail of the convolution.
    """

    Config = SLSTMConfig

    def __init__(self, config: SLSTMConfig, width: int) -> None:
        """ConfigError when ``heads`` does not divide the width."""
        super().__init__()
        self.head_size = equal_parts(width, config.heads, "mixer 'slstm': width", "heads")
        self.heads = config.heads
        self.forget = config.forget_gate
        self.clip = config.clip
        self.conv = CausalConv(width, config.conv_taps) if config.conv_taps else None
        self.input_gate = HeadwiseLinear(width, config.heads)
        self.forget_gate = HeadwiseLinear(width, config.heads)
        self.cell_input = HeadwiseLinear(width, config.heads)
        self.output_gate = HeadwiseLinear(width, config.heads)
        shape = (config.heads, 4, self.head_size)
        self.bias = nn.Parameter(torch.zeros(shape))
        self.recurrent = nn.Parameter(torch.zeros(config.heads, self.head_size, *shape[1:]))
        self.norm = HeadNorm(width, config.heads, config.norm_eps)
        self._initialize(width, config.block, config.blocks)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Mix ``x [B, S, D]``; ``state`` is not changed, so pieces of a sequence can be trained."""
        after: State = {}
        seen = x
        if self.conv is not None:
            seen, after["conv"] = self.conv(x, state["conv"], ctx)
        parts = (
            self.input_gate(seen),
            self.forget_gate(seen),
            self.cell_input(x),
            self.output_gate(x),
        )
        sizes = (*x.shape[:2], self.heads, self.head_size)
        gates = torch.stack([wide(part).reshape(sizes) for part in parts], dim=3)
        gates = gates + wide(self.bias)
        h, c, n, m = (raised(state[key], x) for key in "hcnm")
        y, *last = slstm(
            gates, wide(self.recurrent), h, c, n, m, ctx.valid, forget=self.forget, clip=self.clip
        )
        after.update({key: t.to(state[key].dtype) for key, t in zip("hcnm", last, strict=True)})
        return mask_padding(self.norm(y), ctx), after

    def state_spec(self) -> dict[str, StateSpec]:
        """``[B, H, K]`` four times in float32, and ``[B, D, W - 1]`` with a convolution."""
        cell = StateSpec(("B", self.heads, self.head_size), "f32", role="recurrent")
        specs = dict.fromkeys("hcnm", cell)
        if self.conv is not None:
            channels, taps = self.conv.weight.shape
            specs["conv"] = StateSpec(("B", channels, taps - 1), role="conv")
        return specs

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Head counts that are no powers of two, both forget gates, without a convolution."""
        return [
            {"heads": 3},
            {"heads": 2, "conv_taps": 0, "forget_gate": "exp", "block": 1, "blocks": 3},
        ]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Four gates from x and four from h, and the convolution."""
        per_token = 2 * self.recurrent.numel()
        if self.conv is not None:
            per_token += self.conv.weight.numel()
        return 2 * batch_size * seq_len * per_token

    def _initialize(self, width: int, block: int, blocks: int) -> None:
        """R and the biases start at 0, but for the forget gate's."""
        for gate in (self.input_gate, self.forget_gate, self.cell_input, self.output_gate):
            small_init_(gate.weight, width)
        power_law_(self.bias[:, _FORGET], block, blocks)
