"""BaseConv: a convolution gated by a projection, the plainest gated convolution there is.

Sizes: B batch, S sequence, D width, L taps, P past slots.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor

from seqmix.branches import linear, mask_padding
from seqmix.config import Strict
from seqmix.context import Context
from seqmix.flops import convolution_flops
from seqmix.layers import CausalConv
from seqmix.mixer import SequenceMixer
from seqmix.state import State, StateSpec
from seqmix_gated_conv.filters import (
    ImplicitFilter,
    ImplicitFilterConfig,
    explicit_filter,
    with_skip,
)
from seqmix_gated_conv.history import convolve, history_spec

__all__ = ["BaseConv", "BaseConvConfig", "ReluFilterConfig"]


class ReluFilterConfig(ImplicitFilterConfig):
    """An implicit filter as BaseConv has it: one hidden layer of 16 with relu, no window."""

    hidden: PositiveInt = 16
    layers: NonNegativeInt = 0
    activation: Literal["sine", "relu"] = "relu"
    output_bias: bool = True
    window: Literal["exponential", "none"] = "none"


class BaseConvConfig(Strict):
    """Options of :class:`BaseConv`.

    ``taps`` is the length of a short or explicit filter, ``implicit`` has the options of an
    implicit one.
    """

    filter: Literal["short", "explicit", "implicit"] = "short"
    """Depthwise taps with a bias; a parameter of L taps; or a network that makes the taps."""
    taps: PositiveInt | None = None
    implicit: ReluFilterConfig | None = None
    form: Literal["listing", "skip"] = "listing"
    """``conv(u)`` as in the paper's listing, or ``conv(u) + u`` as in its repository. A short
    filter is without the skip in both."""
    activation: Literal["", "silu"] = ""
    """Applied to the convolution and to the projection."""
    filter_std: float | None = Field(default=None, gt=0)
    """Of a fresh explicit filter, by default ``1 / sqrt(L)``; the listing has 1."""

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        if self.filter == "implicit":
            if self.implicit is None:
                raise ValueError("filter = 'implicit' needs 'implicit' with a reference_length")
            if self.taps is not None:
                raise ValueError("an implicit filter has any length: leave 'taps' out")
        elif self.implicit is not None:
            raise ValueError(f"'implicit' is of no use with filter = '{self.filter}'")
        if self.filter == "explicit" and self.taps is None:
            raise ValueError("filter = 'explicit' needs 'taps', its length")
        if self.filter == "short" and self.form == "skip":
            raise ValueError("form = 'skip' is one of long filters, not of filter = 'short'")
        if self.filter != "explicit" and self.filter_std is not None:
            raise ValueError("'filter_std' is of filter = 'explicit'")
        return self


class BaseConv(SequenceMixer):
    """``y = conv(u) * (W u + b) + u`` (Arora et al. 2023, equation 1 and appendix B).

    What an explicit filter of L taps does not reach adds nothing. Its state is the last L - 1
    inputs, that of an implicit filter all inputs and as many taps, and a decoding step costs as
    many products. A short filter is causal to the bit; the others may go through transforms.
    """

    Config = BaseConvConfig
    exact_causality = False

    def __init__(self, config: BaseConvConfig, width: int) -> None:
        """A projection, and what ``config.filter`` asks for."""
        super().__init__()
        self.config = config
        self.width = width
        self.projection = linear(width, width, bias=True)
        self.short: CausalConv | None = None
        self.explicit: torch.nn.Parameter | None = None
        self.implicit: ImplicitFilter | None = None
        if config.implicit is not None:
            self.implicit = ImplicitFilter(config.implicit, width)
        elif config.filter == "explicit":
            self.explicit = explicit_filter(width, config.taps or 1, config.filter_std)
        else:
            self.short = CausalConv(width, config.taps or 3, activation=config.activation)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Mix ``x [B, S, D]``."""
        gate = self.projection(x)
        if self.short is not None:
            mixed, tail = self.short(x, state["conv"], ctx)
            after = {"conv": tail}
        else:
            filter, after = self._filter(x, state)
            mixed, after["history"] = convolve(
                x, filter, state["history"], ctx, grows=self.explicit is None
            )
        if self.config.activation:
            # A short convolution has applied its own already.
            mixed = mixed if self.short is not None else F.silu(mixed)
            gate = F.silu(gate)
        return mask_padding(torch.addcmul(x, mixed, gate), ctx), after

    def state_spec(self) -> dict[str, StateSpec]:
        """``conv [B, D, L - 1]`` or ``history [B, D, L - 1]``, implicit: P, and taps."""
        if self.short is not None:
            return {"conv": StateSpec(("B", self.width, (self.config.taps or 3) - 1), role="conv")}
        made = {} if self.implicit is None else {"filter": self.implicit.spec()}
        return {**made, "history": history_spec(self.width, self.config.taps)}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Every kind of filter, shorter and longer than the sequences that are tried."""
        return [
            {"taps": 3},
            {"taps": 5, "activation": "silu"},
            {"filter": "explicit", "taps": 40, "form": "skip"},
            {"filter": "explicit", "taps": 6, "activation": "silu"},
            {"filter": "implicit", "implicit": {"reference_length": 16}, "form": "skip"},
        ]

    def flops(self, batch_size: int, seq_len: int) -> int:
        """The projection, the convolution, the taps of an implicit filter, and the gate.

        A long convolution counts the real operations of its transforms, the others multiply-adds.
        """
        return self._flops(batch_size, seq_len, 0)

    def step_flops(self, batch_size: int, past: int) -> int:
        """A long convolution multiplies once per token behind; implicit filters grow by a tap."""
        return self._flops(batch_size, 1, past)

    def _flops(self, batch_size: int, seq_len: int, past: int) -> int:
        tokens = batch_size * seq_len
        total = 2 * tokens * self.width * (self.width + 1)
        if self.short is not None:
            return total + 2 * tokens * self.short.weight.numel()
        taps = self.config.taps or past + seq_len
        total += convolution_flops(batch_size, self.width, seq_len, taps, past)
        return total if self.implicit is None else total + self.implicit.flops(seq_len)

    def _filter(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """``[D, L]``, as long as everything so far when implicit; and the state of its taps."""
        skips = self.config.form == "skip"
        if self.implicit is not None:
            skip = x.new_ones(self.width) if skips else None
            filter, known = self.implicit.after(state["filter"], x.shape[1], skip=skip)
            return filter, {"filter": known}
        if self.explicit is None:
            raise TypeError("a short filter is no long convolution")
        filter = self.explicit
        return with_skip(filter, filter.new_ones(self.width)) if skips else filter, {}
