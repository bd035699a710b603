"""The share of the gap between two language models that is due to associative recall."""

from __future__ import annotations

import math
from dataclasses import dataclass

from seqmix.errors import ConfigError

__all__ = ["GapShare", "gap_share", "hit_proportion", "share_from_perplexities"]


@dataclass(frozen=True)
class GapShare:
    """``value`` is the share, at most 1, or None where there is none; ``reason`` says why."""

    value: float | None
    reason: str = ""


def gap_share(
    model_hits: float, reference_hits: float, model: float, reference: float, proportion: float
) -> GapShare:
    """``min((l_H^m - l_H^M) p_H / (l^m - l^M), 1)`` (Zoology, appendix C.1).

    The arguments are mean log probabilities in nats per token of model m and reference M on the AR
    hits and overall, and the proportion p_H of hits. Where m is no worse than M overall there is
    no gap to share: 1 when M is better at the hits all the same, as the paper has it, else None.
    Without hits the means over them are undefined (NaN) and so is the share. It is negative
    when m is worse overall, but better at the hits.
    """
    if not 0 <= proportion <= 1:
        raise ConfigError(f"the proportion of hits should be in 0..1, found {proportion}")
    if not math.isfinite(model) or not math.isfinite(reference):
        raise ConfigError(
            f"mean log probabilities should be finite, found {model} and {reference} overall"
        )
    if proportion == 0 or math.isnan(model_hits) or math.isnan(reference_hits):
        return GapShare(None, "no token is an AR hit; take longer rows or a higher threshold")
    if model >= reference:
        if model_hits < reference_hits:
            return GapShare(1.0, "the model is no worse overall, but worse at the AR hits")
        return GapShare(None, "no gap: the model is no worse than the reference")
    value = (model_hits - reference_hits) * proportion / (model - reference)
    reason = "the model is worse overall, but better at the AR hits" if value < 0 else ""
    return GapShare(min(value, 1.0), reason)


def share_from_perplexities(
    model_hits: float, reference_hits: float, model: float, reference: float, proportion: float
) -> GapShare:
    """:func:`gap_share` of perplexities, as papers print them."""
    given = (model_hits, reference_hits, model, reference)
    if not all(value > 0 for value in given):
        raise ConfigError(f"perplexities should be above 0, found {', '.join(map(str, given))}")
    one, two, three, four = (-math.log(value) for value in given)
    return gap_share(one, two, three, four, proportion)


def hit_proportion(overall: float, hits: float, others: float) -> float:
    """The proportion of hits p that three perplexities of one model imply.

    It solves ``log overall = p log hits + (1 - p) log others``. ConfigError where no p in 0..1
    does.
    """
    if hits == others or not min(overall, hits, others) > 0:
        raise ConfigError(
            "perplexities of hits and other tokens should differ and be above 0, found "
            f"{hits} and {others}"
        )
    p = math.log(overall / others) / math.log(hits / others)
    if not 0 <= p <= 1:
        raise ConfigError(
            f"perplexity {overall} overall should lie between {hits} of hits and {others} of others"
        )
    return p
