"""Perplexity against the length of the context, for one model with many position encodings."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from seqmix.errors import ConfigError
from seqmix.prompts import learned_positions
from seqmix_longcontext.kept import Kept
from seqmix_longcontext.methods import Method
from seqmix_longcontext.partial import Partial
from seqmix_longcontext.plan import Plan
from seqmix_longcontext.reading import Losses, splits, token_losses
from seqmix_longcontext.subject import Runner, Subject
from seqmix_longcontext.tables import write_table
from seqmix_longcontext.windows import Document, Stretch, score, sliding_windows

__all__ = ["Perplexity", "Reader", "Told", "measure_perplexity"]

Told = Callable[[str, int], None]
"""Told which window is read, and how many tokens of it were read since the last call."""

DIGITS = 7
"""Decimal digits of a kept loss, behind the point."""


@dataclass(frozen=True)
class Perplexity:
    """The rows of ``perplexity.csv``, and of ``documents.csv`` for each document by itself."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    documents: list[dict[str, Any]] = field(default_factory=list)


def measure_perplexity(
    subject: Subject,
    methods: Sequence[Method],
    plan: Plan,
    out: Path,
    *,
    chunk: int = 512,
    told: Told | None = None,
) -> Perplexity:
    """Every method at every length; the tables in ``out`` grow as the figures come.

    The losses of every window are kept in ``out/losses``, so that the same call goes on where it
    was killed. A loss depends only on what came before it: one pass over a document serves all
    shorter lengths too, unless the encoding has one scale for a whole call (``per_window``).
    """
    result = Perplexity()
    for method in methods:
        _check_end(subject, method, plan)
    for method in methods:
        reader = Reader(subject, method, out / "losses", chunk, told)
        # The longest first: what serves the shorter ones is then there.
        found = {
            length: [reader.losses(plan, document, length) for document in plan.of(length)]
            for length in sorted(plan.lengths, reverse=True)
        }
        for length in sorted(plan.lengths):
            _add(result, method, plan, length, found[length])
        write_table(result.rows, out / "perplexity.csv")
        write_table(result.documents, out / "documents.csv")
    return result


class Reader:
    """The losses of one method: those that are kept, or else read with the model."""

    def __init__(
        self,
        subject: Subject,
        method: Method,
        folder: Path,
        chunk: int = 512,
        told: Told | None = None,
    ) -> None:
        """The model is made when the first window has to be read."""
        self._subject, self._method = subject, method
        self._kept, self._chunk, self._told = Kept(folder), chunk, told
        self._config = method.config(subject.checkpoint.config)
        self._splits = splits(self._config)
        self._runner: Runner | None = None
        self._read: dict[tuple[str, int, Stretch], Losses] = {}

    def losses(self, plan: Plan, document: Document, length: int) -> list[Losses]:
        """Those of each window over a document."""
        if plan.mode == "sliding":
            stretches = sliding_windows(len(document.ids), length, plan.stride)
            return [self.read(document, stretch) for stretch in stretches]
        whole = plan.longest(document) if self._splits else length
        return [self.read(document, Stretch(0, whole))[: length - 1]]

    def read(self, document: Document, stretch: Stretch) -> Losses:
        """Those of one window, in nats."""
        place = (document.name, document.start, stretch)
        if place not in self._read:
            self._read[place] = self._from_disk_or_model(document, stretch)
        return self._read[place]

    def _from_disk_or_model(self, document: Document, stretch: Stretch) -> Losses:
        ids = document.ids[stretch.start : stretch.stop]
        about = {
            "weights": self._subject.identity,
            "config": self._config.model_dump(mode="json", exclude_defaults=True),
            "ids": hashlib.sha256(np.asarray(ids, "<i8").tobytes()).hexdigest(),
            "skip": stretch.skip,
        }
        start = document.start + stretch.start
        name = f"{self._method.name}, {document.name} from {start}, {len(ids)} tokens"
        if (known := self._kept.get(about)) is not None:
            self._tell(name, len(ids))
            return np.asarray(known["losses"], np.float64)
        started = time.perf_counter()
        if self._runner is None:
            self._runner = self._subject.runner(self._method)
        partial = Partial(self._kept.path(about).with_suffix(".part"))
        losses = token_losses(
            self._runner,
            ids,
            chunk=self._chunk,
            skip=stretch.skip,
            watch=lambda count: self._tell(name, count),
            partial=partial,
        )
        seconds = round(time.perf_counter() - started, 2)
        kept = {"name": name, "seconds": seconds, "losses": losses.round(DIGITS).tolist()}
        self._kept.put(about, kept)
        partial.remove()
        # What is used is what is kept: with and without a break the tables are the same.
        return losses.round(DIGITS)

    def _tell(self, name: str, count: int) -> None:
        if self._told is not None:
            self._told(name, count)


def _add(
    result: Perplexity, method: Method, plan: Plan, length: int, found: Sequence[list[Losses]]
) -> None:
    """The rows of a method at a length."""
    first = {"method": method.name, "mode": plan.mode, "length": length}
    every = [losses for windows in found for losses in windows]
    result.rows.append({**first, "documents": len(found), **asdict(score(every))})
    for document, windows in zip(plan.of(length), found, strict=True):
        where = {"document": document.name, "start": document.start}
        result.documents.append({**first, **where, **asdict(score(windows))})


def _check_end(subject: Subject, method: Method, plan: Plan) -> None:
    """ConfigError for lengths beyond a learned table of positions."""
    end = learned_positions(method.config(subject.checkpoint.config))
    if end is not None and max(plan.lengths) > end:
        raise ConfigError(
            f"model '{subject.checkpoint.config.name}' has learned {end} positions, it cannot read "
            f"{max(plan.lengths)} tokens at once; leave the longer lengths out"
        )
