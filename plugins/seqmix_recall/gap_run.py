"""The recall gap of two models on a text, from files to a report; a stopped run goes on.

What a folder holds afterwards: ``model.npy`` and ``reference.npy`` (scores, see
:mod:`seqmix_recall.gap_scores`), ``recall_gap.csv``, ``.json``, ``.png`` and ``.html``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from seqmix.errors import ConfigError
from seqmix.plots import check_plots
from seqmix.whole_file import write_whole
from seqmix_recall.gap_counts import BigramCounts
from seqmix_recall.gap_hits import THRESHOLD
from seqmix_recall.gap_inputs import Subject, read_evaluated, read_subject, training_counts
from seqmix_recall.gap_page import render_gap
from seqmix_recall.gap_passages import choose_windows, read_passage
from seqmix_recall.gap_plot import draw_places
from seqmix_recall.gap_report import GapReport, write_csv, write_json
from seqmix_recall.gap_scores import ScoreFile, score_windows
from seqmix_recall.gap_slices import tally_slices
from seqmix_recall.gap_statistics import RESAMPLES, measure_gap
from seqmix_recall.gap_windows import Windows, cut_windows

if TYPE_CHECKING:
    from seqmix.checkpoint import Tokenizer

__all__ = ["GapRequest", "Watch", "run_gap"]

Watch: TypeAlias = Callable[[str, int, int | None], None]
"""Called with what is being done, how much of it was done since the last call, and all of it."""

NAME = "recall_gap"


@dataclass(frozen=True)
class GapRequest:
    """What is compared, and how; the command ``seqmix eval recall-gap`` says what each means."""

    model: str
    reference: str
    text: list[Path]
    train: list[Path]
    out: Path
    length: int = 1024
    threshold: int = THRESHOLD
    windows: int | None = None
    documents: bool = False
    split: str | None = None
    separator: int | None = None
    batch: int = 8
    chunk: int | None = None
    backend: str = "torch"
    rope: str | None = None
    passages: int = 4
    seed: int = 0
    resamples: int = RESAMPLES
    names: tuple[str, str] | None = None
    """What the two are called in the report; by default their sources."""


def run_gap(request: GapRequest, watch: Watch | None = None) -> GapReport:
    """Score what is not scored yet, compare, and write everything into ``request.out``.

    Raises ConfigError for what does not fit, and whatever reading a model raises.
    """
    tell = watch or _silent
    _check(request)
    check_plots()
    subjects = [
        read_subject(source, request.backend, request.rope)
        for source in (request.model, request.reference)
    ]
    separator = _separator(request, subjects)
    cache = request.out / "tokens"
    tokens = read_evaluated(request.text, subjects, cache, separator, request.split)
    cut = cut_windows(tokens, request.length, separator if request.documents else None)
    windows = cut.limited(request.windows)
    counts = training_counts(
        request.train,
        windows,
        subjects,
        cache,
        separator,
        request.split,
        lambda done: tell("counting bigrams", done, None),
    )
    scores = [
        _scored(subject, role, windows, request, tell)
        for subject, role in zip(subjects, ("model", "reference"), strict=True)
    ]
    tally = tally_slices(windows, scores[0].values, scores[1].values, counts, request.threshold)
    gap = measure_gap(tally, request.seed, request.resamples)
    names = request.names or (scores[0].name, scores[1].name)
    report = GapReport(
        *names,
        gap,
        tally,
        request.length,
        len(windows),
        windows.fingerprint,
        request.threshold,
        counts.tokens,
        request.seed,
        "document" if request.documents else "window",
    )
    _write(report, request, windows, scores, counts, _tokenizer(subjects))
    return report


def _check(request: GapRequest) -> None:
    if not request.text or not request.train:
        raise ConfigError("recall-gap: give a text to score and what was trained on")
    numbers = {"threshold": request.threshold, "resamples": request.resamples}
    if request.windows is not None:
        numbers["windows"] = request.windows
    for name, value in numbers.items():
        if value < 1:
            raise ConfigError(f"recall-gap: {name} should be at least 1, found {value}")


def _separator(request: GapRequest, subjects: list[Subject]) -> int | None:
    """The id behind every document: the one asked for, or the first end of the models."""
    if request.separator is not None:
        return request.separator
    found = next((subject.eos for subject in subjects if subject.eos is not None), None)
    if found is None and request.documents:
        raise ConfigError(
            "recall-gap: the models name no 'eos' that could separate documents; give one with "
            "--separator ID"
        )
    return found


def _scored(
    subject: Subject, role: str, windows: Windows, request: GapRequest, tell: Watch
) -> ScoreFile:
    """The scores of a model, those that are missing computed."""
    runner = subject.runner
    if runner is None:
        return ScoreFile.open(Path(subject.source), windows)
    path = request.out / f"{role}.npy"
    scores = ScoreFile.create(path, subject.source, subject.identity, windows)
    what = f"scoring {subject.source}"
    missing = len(scores.missing(windows))
    tell(what, len(windows) - missing, len(windows))
    if missing:
        score_windows(
            runner,
            windows,
            scores,
            batch=request.batch,
            chunk=request.chunk,
            watch=lambda done: tell(what, done, len(windows)),
        )
    return scores


def _tokenizer(subjects: list[Subject]) -> Tokenizer | None:
    return next((s.tokenizer for s in subjects if s.tokenizer is not None), None)


def _write(
    report: GapReport,
    request: GapRequest,
    windows: Windows,
    scores: list[ScoreFile],
    counts: BigramCounts,
    tokenizer: Tokenizer | None,
) -> None:
    """All that people look at."""
    chosen = choose_windows(report.tally.hit_gaps, request.passages, request.seed)
    values = scores[0].values, scores[1].values
    passages = [
        read_passage(number, why, windows, *values, counts, request.threshold, tokenizer)
        for number, why in chosen
    ]
    title = f"{report.gap.slices[1].tokens:,} AR hits in {report.windows:,} windows"
    picture = draw_places(report.tally.hits_at, report.tally.targets_at, title)
    write_csv(report, request.out / f"{NAME}.csv")
    write_json(report, request.out / f"{NAME}.json")
    for kind, content in (("png", picture), ("html", render_gap(report, passages).encode())):
        write_whole(request.out / f"{NAME}.{kind}", content)


def _silent(what: str, done: int, total: int | None) -> None:
    """Nobody watches."""
