"""A measured recall gap as a table, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqmix.whole_file import write_whole
from seqmix_recall.gap_slices import HITS, OVERALL, Tally
from seqmix_recall.gap_statistics import Gap, SliceFigures

__all__ = ["GapReport", "share_sentence", "table_lines", "write_csv", "write_json"]

COLUMNS = (
    "slice",
    "tokens",
    "proportion",
    "model_perplexity",
    "reference_perplexity",
    "model_log_probability",
    "model_error",
    "reference_log_probability",
    "reference_error",
    "difference",
    "difference_error",
    "contribution",
)


@dataclass(frozen=True)
class GapReport:
    """Everything that was measured, and of what."""

    model: str
    reference: str
    gap: Gap
    tally: Tally
    length: int
    windows: int
    fingerprint: str
    threshold: int
    training_tokens: int
    seed: int
    units: str

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "model": self.model,
            "reference": self.reference,
            "share_of_gap": self.gap.share.value,
            "share_of_gap_error": self.gap.share_error,
            "share_of_gap_note": self.gap.share.reason,
            "hit_proportion": self.gap.slice(HITS).proportion,
            "length": self.length,
            "windows": self.windows,
            "windows_fingerprint": self.fingerprint,
            "threshold": self.threshold,
            "training_tokens": self.training_tokens,
            "errors": f"bootstrap over {self.gap.units} {self.units}s, seed {self.seed}",
            "slices": [slice_row(one) for one in self.gap.slices],
            "hits_by_position": self.tally.hits_at.tolist(),
            "targets_by_position": self.tally.targets_at.tolist(),
        }


def slice_row(one: SliceFigures) -> dict[str, Any]:
    """A slice by the names of the columns."""
    values = (
        one.name,
        one.tokens,
        one.proportion,
        one.model_perplexity,
        one.reference_perplexity,
        one.model,
        one.model_error,
        one.reference,
        one.reference_error,
        one.difference,
        one.difference_error,
        one.contribution,
    )
    return dict(zip(COLUMNS, values, strict=True))


def table_lines(report: GapReport) -> list[str]:
    """The slices as text, empty ones left out, and the share in a sentence."""
    head: tuple[str, ...] = (
        "slice",
        "tokens",
        "share",
        "ppl",
        "ppl ref.",
        "difference, nats",
        "of the gap",
    )
    rows = [head, *(_cells(one) for one in report.gap.slices if one.tokens)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return [
        *lines,
        "",
        f"model {report.model}, reference {report.reference}",
        share_sentence(report),
    ]


def share_sentence(report: GapReport) -> str:
    """What part of the gap AR hits have, and what that was measured on."""
    share, gap = report.gap.share, report.gap.slice(OVERALL).difference or 0.0
    better = "worse" if gap > 0 else "better"
    overall = f"overall the model is {abs(gap):.4f} nats per token {better} than the reference"
    found = f"none: {share.reason}"
    if share.value is not None:
        error = report.gap.share_error
        within = "" if error is None or share.reason else f" ± {100 * error:.1f}"
        found = f"{100 * share.value:.1f}{within} %" + (share.reason and f" ({share.reason})")
    return (
        f"share of the gap due to AR hits: {found}; {overall}. {report.windows:,} windows of "
        f"{report.length}, threshold {report.threshold:,} in {report.training_tokens:,} training "
        f"tokens, errors from {report.gap.units:,} {report.units}s."
    )


def write_csv(report: GapReport, path: Path) -> None:
    """One line per slice."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(slice_row(one) for one in report.gap.slices)
    write_whole(path, text.getvalue())


def write_json(report: GapReport, path: Path) -> None:
    """The whole report."""
    write_whole(path, json.dumps(report.as_dict(), indent=2) + "\n")


def _cells(one: SliceFigures) -> tuple[str, ...]:
    return (
        one.name,
        f"{one.tokens:,}",
        f"{one.proportion:.2%}",
        _perplexity(one.model_perplexity),
        _perplexity(one.reference_perplexity),
        _with_error(one.difference, one.difference_error),
        "" if one.contribution is None else f"{one.contribution:.1%}",
    )


def _perplexity(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"


def _with_error(value: float | None, error: float | None) -> str:
    if value is None:
        return ""
    return f"{value:+.4f}" + ("" if error is None else f" ± {error:.4f}")
