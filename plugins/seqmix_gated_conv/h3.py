"""H3: a shift and a diagonal state space between products of queries, keys and values.

Sizes: B batch, S sequence, D width, H heads, K size of a head, N state size of the shift.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from seqmix.branches import mask_padding
from seqmix.context import Context
from seqmix.flops import convolution_flops
from seqmix.layers import equal_parts
from seqmix.mixer import SequenceMixer
from seqmix.state import State, StateSpec
from seqmix_gated_conv.history import convolve, history_spec
from seqmix_gated_conv.state_space import DiagonalStateSpace, StateSpaceConfig

__all__ = ["H3", "H3Config"]


class H3Config(StateSpaceConfig):
    """Options of :class:`H3`; ``state_size`` is that of both state spaces."""

    head_dim: PositiveInt = 1
    discretization: Literal["zoh", "bilinear"] = "bilinear"


class H3(SequenceMixer):
    """``o = W_o (q * diag(shift(k) v^T))`` per head (Fu et al. 2022, section 3 and algorithm 1).

    q, k, v are projections of x. The shift state space, a filter of N taps per channel and a skip,
    acts on k: ``k'[t] = sum_s f[s] k[t-s] + d k[t]``. Of each head with K channels the K x K
    products ``k' v^T`` go through one diagonal state space, ``S[t] = (c * k' v^T)[t] + e (k'
    v^T)[t]``, and q reads ``o[t] = q[t]^T S[t]``. Channel ``k H + h`` is the k-th of head h.

    The paper writes the shift as a state space whose kernel is ``f[t] = sum_s B[s] C[s+t]``, with
    B a unit vector: that is any filter of N taps. Its code has the channels of q, k and v in the
    order ``h K + k``, and only those of the output as here: a permutation of the rows of their
    weights leads from one to the other.
    """

    Config = H3Config
    # The shift may be a transform.
    exact_causality = False

    def __init__(self, config: H3Config, width: int) -> None:
        """ConfigError when ``head_dim`` does not divide the width, or ``state_size`` is odd."""
        super().__init__()
        self.size = config.head_dim
        self.heads = equal_parts(width, config.head_dim, "mixer 'h3': width", "head_dim")
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.shift = nn.Parameter(torch.randn(width, config.state_size))
        self.shift_skip = nn.Parameter(torch.randn(width))
        self.space = DiagonalStateSpace(self.heads, config, inputs=config.head_dim**2)
        self.skip = nn.Parameter(torch.randn(self.heads))
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Mix ``x [B, S, D]``; ``state`` is not changed, so pieces of a sequence can be trained."""
        key = self.key(x)
        moved, keys = convolve(key, self.shift, state["keys"], ctx, grows=False)
        split = (self.size, self.heads)
        key = (moved + self.shift_skip * key).unflatten(2, split)
        query, value = (part(x).unflatten(2, split) for part in (self.query, self.value))
        pairs = key.unsqueeze(3) * value.unsqueeze(2)
        kept, after = self.space(pairs.flatten(2, 3), state["ssm"], ctx)
        kept = kept.unflatten(2, (self.size, self.size)) + self.skip * pairs
        y = (query.unsqueeze(3) * kept).sum(2).flatten(2)
        return mask_padding(self.output(y), ctx), {"keys": keys, "ssm": after}

    def state_spec(self) -> dict[str, StateSpec]:
        """The last N - 1 keys ``[B, D, N - 1]``, and ``[B, H, K * K, N / 2, 2]`` in float32."""
        taps = self.shift.shape[1]
        return {"keys": history_spec(self.shift.shape[0], taps), "ssm": self.space.spec()}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Heads of one channel and of three, both discretizations."""
        return [
            {"state_size": 6},
            {"state_size": 10, "head_dim": 3, "discretization": "zoh", "initialization": "inv"},
        ]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Four projections, the shift, K products per channel in and out, the recurrence."""
        return self._flops(batch_size, seq_len, 0)

    def step_flops(self, batch_size: int, past: int) -> int:
        """The same for one token, whatever lies behind: its shift is a product per tap."""
        return self._flops(batch_size, 1, self.shift.shape[1] - 1)

    def _flops(self, batch_size: int, seq_len: int, past: int) -> int:
        width, taps = self.shift.shape
        tokens = batch_size * seq_len
        products = 2 * tokens * (4 * width * width + 2 * width * self.size)
        shift = convolution_flops(batch_size, width, seq_len, taps, past)
        return products + shift + self.space.flops(batch_size, seq_len)
