"""Rotary encodings whose frequencies depend on the length: for every query, or for a whole call.

B batch, S sequence, R rotated size.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from pydantic import BaseModel, PositiveInt
from torch import Tensor

from seqmix.errors import ConfigError
from seqmix_rope.per_query import per_query_attention
from seqmix_rope.rope import Rope, RopeConfig, rotary_tables
from seqmix_rope.scaling import Frequencies

__all__ = ["PerLength", "PerLengthConfig", "Spectra"]

Spectra = tuple[Tensor, Tensor, Tensor]
"""Radians per token ``[.., R/2]``, factor on cos and sin ``[..]``, factor on logits ``[..]``."""


class PerLengthConfig(RopeConfig):
    """When the length is read; lengths in tokens.

    ``per_query``: the query at position t uses the frequencies of t + 1 tokens for itself and for
    all keys, which is what decoding token by token computes. ``per_window``: one set for the whole
    call, that of its length, as the paper evaluates; then a sequence read in pieces is not the same
    as at once. ``granularity`` g takes the length at the end of the query's block of g positions
    instead of at the query (1, the paper), so that keys are turned once per block.
    """

    mode: Literal["per_query", "per_window"] = "per_query"
    granularity: PositiveInt = 1


class PerLength(Rope):
    """A rotary encoding whose frequencies follow the length of each sequence.

    Keys are cached before rotation (YaRN, section 3.4): all of them turn anew as the length grows.
    The frequencies are a function of positions alone, computed in float64 in the graph: nothing is
    remembered between calls, and rows of a batch do not see each other's length.
    """

    Config: ClassVar[type[BaseModel]] = PerLengthConfig
    config: PerLengthConfig
    caches_rotated_keys = False

    def __init__(self, config: PerLengthConfig, head_dim: int) -> None:
        """Raise ConfigError when the sizes do not fit, as :class:`Rope` does."""
        super().__init__(config, head_dim)
        self.per_query = config.mode == "per_query"
        self.splits = self.attends = self.per_query

    @abstractmethod
    def spectra(self, length: Tensor) -> Spectra:
        """The frequencies for so many tokens, a float64 tensor ``[..]``; all results float64."""

    def frequencies(self, length: int = 1) -> Frequencies:
        """Those of a sequence of ``length`` tokens."""
        found = self.spectra(torch.tensor(float(length), dtype=torch.float64, device="cpu"))
        inv_freq, factor, logits = (t.expand(t.shape) for t in found)
        return Frequencies(inv_freq.numpy(), float(factor), float(logits))

    def tables(self, positions: Tensor, context_length: Tensor) -> tuple[Tensor, ...]:
        """Per query: frequencies, squared factor, factor on logits. Of a call's scale: cos, sin."""
        if self.per_query:
            inv_freq, factor, logits = self.spectra(self._rounded(positions + 1))
            return inv_freq, factor.square(), logits
        inv_freq, factor, _ = self.spectra(self._rounded(context_length))
        return rotary_tables(
            positions, inv_freq.unsqueeze(1), factor[:, None, None], self.table_dtype
        )

    def rotate_by(self, x: Tensor, tables: tuple[Tensor, ...], role: str) -> Tensor:
        """Turn by a call's one scale; per query :meth:`attend` turns the keys alone."""
        return x if self.per_query else super().rotate_by(x, tables, role)

    def rotate(self, x: Tensor, positions: Tensor, context_length: Tensor, role: str) -> Tensor:
        """Turn by a call's one scale; per query ConfigError for keys: no table fits."""
        if self.per_query and role == "query":
            return x
        if self.per_query:
            raise ConfigError(
                "this position encoding turns the keys anew for every query: attend by "
                "Context.attend instead of rotating the keys, or set mode = 'per_window'"
            )
        return super().rotate(x, positions, context_length, role)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_positions: Tensor,
        key_positions: Tensor,
        tables: tuple[Tensor, ...],
        *,
        scale: float = 0.0,
        window: int = 0,
    ) -> Tensor:
        """Attention with the keys turned for every query."""
        inv_freq, magnitude, logits = tables
        if self.scales_logits:
            query = (query * logits.to(self.table_dtype)[:, None, :, None]).to(query.dtype)
        return per_query_attention(
            query,
            key,
            value,
            query_positions,
            key_positions,
            inv_freq,
            magnitude,
            scale=scale,
            window=window,
            interleaved=self.interleaved,
        )

    def logit_scale(self, context_length: Tensor) -> Tensor | float:
        """The factor of a call's one scale; per query :meth:`attend` has seen to it."""
        if self.per_query or not self.scales_logits:
            return 1.0
        return self.spectra(self._rounded(context_length))[2]

    @property
    def scales_logits(self) -> bool:
        """Whether there is a factor on logits beside the rotation."""
        return False

    def _rounded(self, length: Tensor) -> Tensor:
        """int64 lengths as float64, at the end of their block; at least one block."""
        g, length = self.config.granularity, length.clamp(min=1)
        if g > 1:
            length = (length + (g - 1)) // g * g
        return length.to(torch.float64)
