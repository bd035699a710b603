"""All contestants of a run, and the machine's own limits, each in a process of its own."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from seqmix.bench.child import Child, ChildError
from seqmix.bench.cost import need_of
from seqmix.bench.result import Case, Entry, Row, Settings
from seqmix.bench.spec import Spec, compile_options
from seqmix.bench.turns import take_turns
from seqmix.config import ModelConfig
from seqmix.progress import counted

__all__ = ["Field", "Start"]

Start: TypeAlias = Callable[[int], Child]

_LIMITS = ("products", "reads")
_WARM_UP = 1
"""Turns that do not count: each contestant has done the work once before them."""


class Field:
    """Starts the processes; they end with the stack."""

    def __init__(
        self,
        stack: ExitStack,
        specs: Sequence[Spec],
        settings: Settings,
        config: ModelConfig,
        start: Start = Child,
    ) -> None:
        """Nothing is loaded yet. ``start`` makes somebody to ask, for a number of threads."""
        self._settings = settings
        self._config = config
        self._specs = {spec.name: spec for spec in specs}
        self._children = {n: stack.enter_context(start(settings.threads)) for n in self._specs}
        self._limits = stack.enter_context(start(settings.threads))
        self._reasons: dict[str, str] = {}
        """Why a contestant takes no part any more."""

    def prepare(self) -> list[Entry]:
        """Load and compile, one after the other; who takes part."""
        entries = []
        for number, (name, spec) in enumerate(self._specs.items()):
            counted(f"preparing {name}", number, len(self._specs))
            entry = self._entry(spec)
            if entry.reason:
                self._reasons[name] = entry.reason
            entries.append(entry)
        return entries

    def prepare_limits(self) -> list[str]:
        """Find the fastest product and the fastest way to read; whose they are."""
        counted("the machine's limits", 0, 0)
        threads, clock = self._settings.threads, self._settings.clock
        self._limits.ask("settle", vocabulary=self._config.vocab_size, clock=clock)
        backends = [
            (spec.target, compile_options(spec, threads))
            for spec in self._specs.values()
            if spec.kind == "backend" and not spec.options and spec.name not in self._reasons
        ]
        found: list[str] = self._limits.ask("ceiling", backends=backends, threads=threads)
        return found

    def case(self, phase: str, length: int) -> Case:
        """Everybody in turn, products and reads among them."""
        count = self._settings.tokens if phase == "decode" else 1
        rows = self._rows(phase, length)
        turns = {row.contestant: self._turn(row) for row in rows if not row.reason}
        # No contestant's name begins with a space.
        turns |= {f" {limit}": self._work(limit) for limit in _LIMITS}
        seconds = take_turns(turns, self._settings.rounds, warm_up=_WARM_UP)
        for row in rows:
            if not row.reason:
                row.seconds = seconds[row.contestant]
                row.peak_mib = self._children[row.contestant].ask("peak")
        products, reads = (seconds[f" {limit}"] for limit in _LIMITS)
        return Case(phase, length, count, products, reads, rows)

    def _entry(self, spec: Spec) -> Entry:
        entry, child, given = Entry(spec.name, spec.kind), self._children[spec.name], self._settings
        try:
            child.ask("settle", vocabulary=self._config.vocab_size, clock=given.clock)
            found = child.ask(
                "prepare",
                spec=dataclasses.asdict(spec),
                source=given.model,
                rope=given.rope,
                threads=given.threads,
            )
        except ChildError as error:
            entry.reason = str(error)
            return entry
        return dataclasses.replace(entry, **found)

    def _rows(self, phase: str, length: int) -> list[Row]:
        """A row for everybody, ready for its turns, with how far its logits are from the first."""
        rows: list[Row] = []
        first: NDArray[np.float32] | None = None
        for name, spec in self._specs.items():
            need = need_of(self._config, phase, length, spec.options)
            row = Row(name, need.flops, need.bytes, reason=self._reasons.get(name, ""))
            rows.append(row)
            if row.reason or (logits := self._ready(row, phase, length)) is None:
                continue
            first = logits if first is None else first
            row.difference = _difference(logits, first)
        return rows

    def _ready(self, row: Row, phase: str, length: int) -> NDArray[np.float32] | None:
        """Have a contestant do the work once; its logits, or None and a reason in the row."""
        given = self._settings
        arguments = {"phase": phase, "length": length, "tokens": given.tokens, "seed": given.seed}
        try:
            text = self._children[row.contestant].ask("case", **arguments)
        except ChildError as error:
            self._fail(row, error)
            return None
        return np.frombuffer(base64.b64decode(text), np.float32)

    def _turn(self, row: Row) -> Callable[[], float]:
        def turn() -> float:
            if row.reason:
                return math.nan
            try:
                seconds: float = self._children[row.contestant].ask("turn")
            except ChildError as error:
                self._fail(row, error)
                return math.nan
            return seconds

        return turn

    def _work(self, limit: str) -> Callable[[], float]:
        def turn() -> float:
            seconds: float = self._limits.ask("work", name=limit)
            return seconds

        return turn

    def _fail(self, row: Row, error: ChildError) -> None:
        """Note why; one whose process is gone takes part in nothing any more."""
        row.reason = str(error)
        if not self._children[row.contestant].alive:
            self._reasons[row.contestant] = row.reason


def _difference(logits: NDArray[np.float32], first: NDArray[np.float32]) -> float:
    """The largest difference, to the largest value; infinite for logits that are none."""
    if logits.shape != first.shape or not np.isfinite(logits).all():
        return math.inf
    return float(np.abs(logits - first).max() / max(float(np.abs(first).max()), 1e-30))
