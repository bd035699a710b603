"""The best temperature of the softmax for each scale (YaRN, section 3.3 and appendix A.3).

YaRN multiplies queries and keys by ``1/sqrt(t)``, so the logits by ``1/t``. The sweep measures the
perplexity for several values of ``1/sqrt(t)`` and several scales s, and fits the best values by
``c ln(s) + 1``; the paper found ``c = 0.1``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from seqmix import registry
from seqmix.errors import ConfigError
from seqmix_longcontext.methods import Method
from seqmix_longcontext.perplexity import Reader, Told
from seqmix_longcontext.subject import Subject
from seqmix_longcontext.tables import write_table
from seqmix_longcontext.windows import Document, Stretch, score

__all__ = ["Sweep", "best_value", "fit_coefficient", "measure_temperature", "scale_of"]

PAPER = 0.1


@dataclass(frozen=True)
class Sweep:
    """The rows of ``temperature.csv`` and ``best.csv``; ``coefficient`` is c of the fit."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    best: list[dict[str, Any]] = field(default_factory=list)

    @property
    def coefficient(self) -> float | None:
        """That of the fit ``c ln(s) + 1``; None where no scale is above 1."""
        return fit_coefficient([(row["scale"], row["best"]) for row in self.best])


def measure_temperature(
    subject: Subject,
    methods: Sequence[Method],
    values: Sequence[float],
    documents: Sequence[Document],
    lengths: Sequence[int],
    out: Path,
    *,
    segments: int = 8,
    chunk: int = 512,
    told: Told | None = None,
) -> Sweep:
    """Every method, at its length, with every value of 1/sqrt(t) as its attention factor.

    Perplexities are those of the whole length (segment ``all``), and of so many equal parts of it:
    the best value should be the same at all positions. Losses are kept in ``out/losses``. Raises
    ConfigError for encodings that have no attention factor.
    """
    _check_values(values, segments)
    scales = [scale_of(subject, method) for method in methods]
    sweep = Sweep()
    for method, scale, length in zip(methods, scales, lengths, strict=True):
        for value in sorted(values):
            options = {**method.options, "attention_factor": value}
            name = f"{method.name}, 1/sqrt(t) = {value:g}"
            reader = Reader(
                subject, Method(name, method.target, options), out / "losses", chunk, told
            )
            found = [reader.read(document, Stretch(0, length)) for document in documents]
            first = {"method": method.name, "scale": scale, "length": length, "value": value}
            for segment, parts in _segments(found, segments):
                sweep.rows.append(
                    {**first, "segment": segment, "perplexity": score(parts).perplexity}
                )
            write_table(sweep.rows, out / "temperature.csv")
        sweep.best.append(_best(method, scale, sweep.rows))
        write_table(sweep.best, out / "best.csv")
    return sweep


def scale_of(subject: Subject, method: Method) -> float:
    """The factor s of a method; ConfigError unless its encoding takes an attention factor."""
    position = method.config(subject.checkpoint.config).position
    fields: Any = {}
    if position is not None:
        fields = cast("Any", registry.get("positions", position.kind)).Config.model_fields
    if position is None or "attention_factor" not in fields or "factor" not in fields:
        raise ConfigError(
            f"'{method.name}' has no fixed factor and attention factor to sweep; "
            "take an encoding that has both, such as yarn:2"
        )
    if set(method.options) & {"attention_factor", "attn_factor"}:
        raise ConfigError(f"'{method.name}' sets the factor that the sweep varies; leave it out")
    return float(position.options["factor"])


def best_value(values: Sequence[float], losses: Sequence[float]) -> tuple[float, bool]:
    """Where a loss is lowest, and whether that lies between two values that were tried.

    The lowest point of the parabola through the lowest value and its neighbours.
    """
    order = np.argsort(values)
    x, y = np.asarray(values, float)[order], np.asarray(losses, float)[order]
    low = int(np.argmin(y))
    if not 0 < low < len(x) - 1:
        return float(x[low]), False
    a, b, c = x[low - 1 : low + 2]
    fa, fb, fc = y[low - 1 : low + 2]
    over = (b - a) ** 2 * (fb - fc) - (b - c) ** 2 * (fb - fa)
    under = (b - a) * (fb - fc) - (b - c) * (fb - fa)
    return (float(b - over / (2 * under)) if under else float(b)), True


def fit_coefficient(points: Sequence[tuple[float, float]]) -> float | None:
    """The c that fits ``1/sqrt(t) = c ln(s) + 1`` best, for pairs of s and 1/sqrt(t)."""
    logs = np.array([math.log(scale) for scale, _ in points if scale > 1])
    above = np.array([value - 1 for scale, value in points if scale > 1])
    return float(logs @ above / (logs @ logs)) if len(logs) else None


def _best(method: Method, scale: float, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    own = [row for row in rows if (row["method"], row["segment"]) == (method.name, "all")]
    values = [row["value"] for row in own]
    best, inside = best_value(values, [math.log(row["perplexity"]) for row in own])
    return {
        "method": method.name,
        "scale": scale,
        "best": best,
        "inside": int(inside),
        "paper": PAPER * math.log(scale) + 1,
        "perplexity": min(row["perplexity"] for row in own),
    }


def _segments(found: Sequence[Any], count: int) -> list[tuple[str, list[Any]]]:
    """All losses, and those of each of so many equal parts."""
    parts = zip(*(np.array_split(losses, count) for losses in found), strict=True)
    numbered = [(str(number), list(part)) for number, part in enumerate(parts)]
    return [("all", list(found)), *(numbered if count > 1 else [])]


def _check_values(values: Sequence[float], segments: int) -> None:
    if not values or min(values) <= 0 or len(set(values)) < len(values):
        raise ConfigError(f"values of 1/sqrt(t) should be different, above 0, found {values}")
    if segments < 1:
        raise ConfigError(f"segments should be at least 1, found {segments}")
