"""How the next token is chosen: the likeliest, or drawn from what a chain of filters leaves.

The order is the field's: repetition penalty, temperature, top-k, top-p, min-p; what is left is
renormalized. All of it is computed in float64 and row by row, so a row's token depends neither on
the batch around it nor on the dtype of the model beyond its logits.

Sizes: B rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import numpy
import torch
from torch import Tensor

from seqmix.errors import ConfigError, SeqmixError

__all__ = [
    "Sampler",
    "Sampling",
    "distribution",
    "draw",
    "keep_min_p",
    "keep_top_k",
    "keep_top_p",
    "penalize",
]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen. Raises ConfigError for a value out of range.

    Attributes:
        temperature: divides the scores; 0 takes the likeliest token and needs no filter.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the fewest likeliest tokens whose probabilities reach p (Holtzman et al. 2019,
            nucleus sampling); 1 keeps all.
        min_p: keep tokens at least p times as likely as the likeliest (Nguyen et al. 2024); 0
            keeps all.
        repetition_penalty: divides the positive scores and multiplies the negative ones of every
            token that the prompt or the continuation has (Keskar et al. 2019, section 4.1); 1
            changes nothing.

    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
            if not isinstance(given := getattr(self, name), Real):
                raise ConfigError(f"{name} should be a number, found {given!r}")
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise ConfigError(
                f"temperature should be 0 (greedy) or a positive number, found {self.temperature}"
            )
        if isinstance(self.top_k, float) or self.top_k < 0:
            raise ConfigError(f"top_k should be an integer, 0 (off) or more, found {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(
                f"top_p should be more than 0 and at most 1 (off), found {self.top_p}"
            )
        if not 0 <= self.min_p <= 1:
            raise ConfigError(f"min_p should be between 0 (off) and 1, found {self.min_p}")
        if not math.isfinite(self.repetition_penalty) or self.repetition_penalty <= 0:
            raise ConfigError(
                "repetition_penalty should be a positive number, 1 for none, "
                f"found {self.repetition_penalty}"
            )


class Sampler:
    """Chooses one token per row, step by step; remembers what each row has had.

    Every row has its own stream of random numbers, made from the seed and the row's number, and a
    draw takes one number of it. So a row draws the same whatever stands beside it in the batch.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompts: Sequence[Sequence[int]],
        seed: int | None = None,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Begin after ``prompts``, whose row numbers are ``rows`` (0, 1, ... when None).

        Without a seed every run differs. Raises ConfigError for a negative seed or row number.
        """
        numbers = range(len(prompts)) if rows is None else rows
        if (seed is not None and seed < 0) or any(row < 0 for row in numbers):
            raise ConfigError(
                f"seed and rows should be 0 or more, found {seed} and {list(numbers)}"
            )
        self._sampling = sampling
        self._streams = _streams(seed, numbers)
        self._prompts = prompts
        self._seen: list[Tensor] | None = None

    def __call__(self, logits: Tensor, alive: Sequence[bool] | None = None) -> list[int | None]:
        """One token per row of ``logits [B, V]``, None where a row is not ``alive``.

        SeqmixError when a row that is alive has NaN or infinity.
        """
        rows = [row for row in range(len(logits)) if alive is None or alive[row]]
        chosen: list[int | None] = [None] * len(logits)
        if not rows:
            return chosen
        logits = logits.detach()
        best = logits.argmax(dim=-1)
        # NaN counts as the largest of all, so the largest one tells of every bad row but for free.
        _check_finite(logits.gather(1, best.unsqueeze(1)).squeeze(1), rows)
        if self._sampling.temperature == 0 and self._sampling.repetition_penalty == 1:
            found = dict(enumerate(best.tolist()))
        else:
            found = self._choose(logits.cpu(), rows)
        for row in rows:
            chosen[row] = found[row]
        return chosen

    def _choose(self, logits: Tensor, rows: Sequence[int]) -> dict[int, int]:
        """The tokens of some rows, one row at a time."""
        found = {}
        for row in rows:
            scores = logits[row].to(torch.float64)
            if self._sampling.repetition_penalty != 1:
                seen = self._seen_by(row, len(scores))
                scores = penalize(scores, seen, self._sampling.repetition_penalty)
            if self._sampling.temperature == 0:
                found[row] = int(scores.argmax())
            else:
                chances = distribution(scores, self._sampling)
                found[row] = draw(chances, float(self._streams[row].random()))
            if self._seen is not None:
                self._seen[row][found[row]] = True
        return found

    def _seen_by(self, row: int, vocab_size: int) -> Tensor:
        """Bool ``[V]``: the tokens of the row so far."""
        if self._seen is None:
            self._seen = [torch.zeros(vocab_size, dtype=torch.bool) for _ in self._prompts]
            for seen, prompt in zip(self._seen, self._prompts, strict=True):
                seen[torch.tensor(list(prompt), dtype=torch.int64)] = True
        return self._seen[row]


def penalize(scores: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Make the tokens ``seen`` (bool ``[V]``) less likely; more likely for a penalty below 1."""
    lower = torch.where(scores > 0, scores / penalty, scores * penalty)
    return torch.where(seen, lower, scores)


def distribution(scores: Tensor, sampling: Sampling) -> Tensor:
    """The probabilities ``[V]`` that a draw follows, from float64 scores ``[V]``.

    The temperature must not be 0; the penalty is already in the scores.
    """
    # Shifted first, so that a tiny temperature gives -inf, never a NaN.
    scores = (scores - scores.max()) / sampling.temperature
    scores = keep_top_k(scores, sampling.top_k)
    scores = keep_top_p(scores, sampling.top_p)
    scores = keep_min_p(scores, sampling.min_p)
    return torch.softmax(scores, dim=-1)


def keep_top_k(scores: Tensor, k: int) -> Tensor:
    """Leave the k largest of ``scores [V]``, of equals the first ones; the rest becomes -inf."""
    if k == 0 or k >= len(scores):
        return scores
    smallest = scores.topk(k).values[-1]
    above = scores > smallest
    equal = torch.nonzero(scores == smallest).squeeze(1)
    above[equal[: k - int(above.sum())]] = True
    return _only(scores, above)


def keep_top_p(scores: Tensor, p: float) -> Tensor:
    """Leave the fewest largest of ``scores [V]`` whose softmax sums to at least p."""
    if p == 1:
        return scores
    chances = torch.softmax(scores, dim=-1)
    # Those below this share have less than 1 - p together, so the others reach p without them;
    # which spares sorting most of a vocabulary.
    ids = torch.nonzero(chances >= (1 - p) / len(chances)).squeeze(1)
    ids = ids[chances[ids].argsort(descending=True, stable=True)]
    # A token stays when those before it do not reach p; the first one always does.
    kept = torch.zeros_like(scores, dtype=torch.bool)
    kept[ids[(chances[ids].cumsum(0) - chances[ids]) < p]] = True
    return _only(scores, kept)


def keep_min_p(scores: Tensor, p: float) -> Tensor:
    """Leave those of ``scores [V]`` whose softmax is at least p times the largest one."""
    if p == 0:
        return scores
    return _only(scores, scores >= scores.max() + math.log(p))


def draw(chances: Tensor, number: float) -> int:
    """The token at ``number`` in [0, 1) of the running sum of probabilities ``chances [V]``."""
    total = chances.cumsum(0)
    found = int(torch.searchsorted(total, number * total[-1], right=True))
    # The product may round up to the whole sum; then it is the last token that can be drawn.
    return found if found < len(chances) else int(torch.nonzero(chances)[-1])


def _only(scores: Tensor, kept: Tensor) -> Tensor:
    return scores.masked_fill(~kept, -math.inf)


def _streams(seed: int | None, rows: Sequence[int]) -> list[numpy.random.Generator]:
    """One generator per row number; numpy's seed sequence keeps all of them apart."""
    entropy = numpy.random.SeedSequence().entropy if seed is None else seed
    sequences = (numpy.random.SeedSequence(entropy, spawn_key=(row,)) for row in rows)
    return [numpy.random.Generator(numpy.random.PCG64(sequence)) for sequence in sequences]


def _check_finite(largest: Tensor, rows: Sequence[int]) -> None:
    values = largest.tolist()
    for row in rows:
        if not math.isfinite(values[row]):
            kind = "contain NaN" if math.isnan(values[row]) else "contain infinity"
            raise SeqmixError(
                f"row {row}: the logits {kind}; check the weights, or use a wider dtype"
            )
