"""How the next token is chosen: the likeliest, or drawn at a temperature from a seeded stream."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seqmix.errors import ConfigError, SeqmixError

__all__ = ["Sampler"]


class Sampler:
    """Greedy at temperature 0, else a draw from ``softmax(logits / temperature)``.

    The same seed and the same logits give the same tokens; without a seed every run differs.
    """

    def __init__(self, temperature: float = 0.0, seed: int | None = None) -> None:
        """Make the stream of random numbers; ConfigError for a temperature that is not finite."""
        if not math.isfinite(temperature) or temperature < 0:
            raise ConfigError(
                f"temperature should be 0 (greedy) or a positive number, found {temperature}"
            )
        self._temperature = temperature
        self._generator = torch.Generator()
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    def __call__(self, logits: Tensor) -> list[int]:
        """One token per row of ``logits [B, V]``; SeqmixError when a row has NaN."""
        rows = logits.detach().to("cpu", torch.float64)
        if bool(rows.isnan().any()):
            raise SeqmixError("the logits contain NaN; check the weights, or use a wider dtype")
        if self._temperature == 0:
            return [int(token) for token in rows.argmax(dim=-1)]
        # Shifted first, so that a tiny temperature gives -inf, never a NaN.
        shifted = (rows - rows.amax(dim=-1, keepdim=True)) / self._temperature
        chances = torch.softmax(shifted, dim=-1)
        drawn = torch.multinomial(chances, 1, generator=self._generator)
        return [int(token) for token in drawn.squeeze(1)]
