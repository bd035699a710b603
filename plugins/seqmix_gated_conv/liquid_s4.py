"""Liquid S4: a state space that also sees products of neighbouring inputs.

Sizes: B batch, S sequence, D width, N complex modes (half of ``state_size``), P degree.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from seqmix.context import Context
from seqmix.mixer import SequenceMixer
from seqmix.state import State, StateSpec
from seqmix_gated_conv.s4d import S4DConfig, StateSpaceHead
from seqmix_gated_conv.state_space import DiagonalStateSpace

__all__ = ["LiquidS4", "LiquidS4Config"]


class LiquidS4Config(S4DConfig):
    """Options of :class:`LiquidS4`."""

    degree: int = Field(default=2, ge=2)
    """P: products of up to so many neighbouring inputs."""
    liquid_kernel: Literal["pb", "kb"] = "pb"
    """What becomes of a product: it is weighted and added (PB), or convolved (KB)."""
    discretization: Literal["zoh", "bilinear"] = "bilinear"


class LiquidS4(SequenceMixer):
    """``y = GLU(W gelu(k * u + sum_p k_p * v_p + D u))`` (Hasani et al. 2022).

    ``v_p[t] = u[t] u[t-1] .. u[t-p+1]`` for p from 2 to P, with 0 before the first token. With
    ``liquid_kernel`` "kb" ``k_p[t] = 2 Re(sum_n C_n b_n^p a_n^t)``, a state space of its own for
    each p; with "pb", which the paper found better, the a of the liquid part is dropped, so that
    only the newest product counts: ``k_p[0]`` of this and nothing else (arXiv 2209.12951, section
    3). a and b are those of S4D, ``b_n^p`` is by element.

    These are the terms of the liquid state space ``x_t = (a + b u_t) x_{t-1} + b u_t`` whose inputs
    are neighbours. Its authors' code turns the products around in time, and may take other
    combinations: that sees the future, so it is not done here.
    """

    Config = LiquidS4Config

    def __init__(self, config: LiquidS4Config, width: int) -> None:
        """ConfigError when ``state_size`` is odd."""
        super().__init__()
        self.degree = config.degree
        self.convolves = config.liquid_kernel == "kb"
        self.space = DiagonalStateSpace(width, config)
        self.skip = nn.Parameter(torch.randn(width))
        self.head = StateSpaceHead(config, width)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Mix ``x [B, S, D]``; ``state`` is not changed, so pieces of a sequence can be trained."""
        products, last = self._products(x, state["inputs"], ctx)
        decay, weight = self.space.discrete()
        readouts = [self.space.readout(weight, power) for power in range(1, self.degree + 1)]
        if self.convolves:
            seen, decay = torch.cat([x, products], 2), torch.cat([decay] * self.degree)
            readout = torch.cat(readouts)
        else:
            seen, readout = x, readouts[0]
        y, after = self.space.run(seen.unsqueeze(2), decay, readout, state["ssm"], ctx)
        terms = self._summed(y.squeeze(2))
        if not self.convolves:
            taps = torch.cat([readout[..., 0].sum(-1) for readout in readouts[1:]])
            terms = terms + self._summed(products * taps.to(x.dtype))
        return self.head(terms + self.skip * x, ctx), {"ssm": after, "inputs": last}

    def _products(self, x: Tensor, inputs: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """``v_2 .. v_P [B, S, (P - 1) D]``, 0 at padding, and the last P - 1 inputs."""
        joined = ctx.prepend(inputs, ctx.compact(x))
        reach, length = self.degree - 1, x.shape[1]
        product, found = joined[:, reach:], []
        for back in range(1, self.degree):
            product = product * joined[:, reach - back : reach - back + length]
            found.append(product)
        return ctx.scatter_back(torch.cat(found, 2)), joined[:, length:].clone()

    def _summed(self, terms: Tensor) -> Tensor:
        """``[B, S, M D]`` as the sum of M terms, ``[B, S, D]``."""
        return terms.reshape(*terms.shape[:2], -1, self.space.spaces).sum(2)

    def state_spec(self) -> dict[str, StateSpec]:
        """``[B, D, 1, N, 2]`` in float32 (KB: P times as many), and inputs ``[B, P - 1, D]``."""
        return {
            "ssm": self.space.spec(self.degree if self.convolves else 1),
            "inputs": StateSpec(("B", self.degree - 1, self.space.spaces), role="conv"),
        }

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both kernels, both discretizations, two degrees."""
        return [
            {"state_size": 6},
            {"state_size": 4, "degree": 3, "liquid_kernel": "kb", "discretization": "zoh"},
        ]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """The recurrences, the products and the projection; no transform is counted."""
        spaces = self.degree if self.convolves else 1
        products = 2 * batch_size * seq_len * (self.degree - 1) * self.space.spaces
        found = spaces * self.space.flops(batch_size, seq_len) + products
        return found + self.head.flops(batch_size, seq_len)
