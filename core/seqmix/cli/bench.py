"""``seqmix bench``: implementations of one model in turn, beside what the machine can do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from seqmix.cli.loading import load_checkpoint
from seqmix.errors import ConfigError
from seqmix.progress import progress
from seqmix.whole_file import write_whole

if TYPE_CHECKING:
    from seqmix.bench.result import Result, Settings

__all__ = ["bench_model", "numbers", "words"]

_WIDE = 1000
"""Columns for tables in a file, which take no more of them than they need."""


def bench_model(
    settings: Settings,
    lengths: Sequence[int],
    phases: Sequence[str],
    json: Path | None,
    html: Path | None,
    markdown: Path | None,
    fresh: bool,
) -> int:
    """Measure, print tables and write files; 1 if a contestant failed.

    Cases that stand in ``json`` are not measured again, unless ``fresh``; ConfigError when it holds
    those of other settings.
    """
    from seqmix.bench.run import measure, specs_of
    from seqmix.bench.table import markdown as markdown_of
    from seqmix.bench.table import notes, reasons, terminal

    _check(settings, phases)
    specs_of(settings)  # Before anything slow begins.
    before = None if fresh else _before(settings, json)
    config = load_checkpoint(settings.model, settings.rope).config
    with progress("measuring"):
        result = measure(
            config, settings, lengths, phases, before, lambda found: _write(found, json, html)
        )
    _write(result, json, html)
    if markdown is not None:
        write_whole(markdown, markdown_of(result))
    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    for table in terminal(result):
        console.print(table)
    for note in notes(result):
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    failed = reasons(result)
    for name, reason in failed.items():
        console.print(f"{name}: {reason}", style="red", markup=False, highlight=False)
    return 1 if failed else 0


def words(text: str) -> list[str]:
    """A list that commas separate."""
    return [word for part in text.split(",") if (word := part.strip())]


def numbers(text: str) -> list[int]:
    """Lengths that commas separate; ConfigError for anything else."""
    try:
        return [int(word) for word in words(text)]
    except ValueError as error:
        raise ConfigError(
            f"--lengths should be numbers of tokens such as 128,512, found '{text}'"
        ) from error


def _check(settings: Settings, phases: Sequence[str]) -> None:
    from seqmix.bench.run import PHASES
    from seqmix.bench.worker import CLOCKS

    if not phases or not set(phases) <= set(PHASES):
        raise ConfigError(f"--phases should be of {', '.join(PHASES)}, found {list(phases)}")
    if settings.clock not in CLOCKS:
        raise ConfigError(f"--clock should be {' or '.join(CLOCKS)}, found '{settings.clock}'")


def _before(settings: Settings, path: Path | None) -> Result | None:
    """What a run of these settings left behind."""
    from seqmix.bench.result import read_result

    if path is None or not path.exists():
        return None
    found = read_result(path)
    ours, theirs = dataclasses.asdict(settings), dataclasses.asdict(found.settings)
    if other := [f"{k} {theirs[k]}" for k in ours if ours[k] != theirs[k]]:
        raise ConfigError(
            f"{path} was measured with other settings ({'; '.join(other)}); choose another file, "
            "or replace it with --fresh"
        )
    return found


def _write(result: Result, json: Path | None, html: Path | None) -> None:
    from seqmix.bench.page import render_bench
    from seqmix.bench.result import write_result

    if json is not None:
        write_result(result, json)
    if html is not None:
        write_whole(html, render_bench(result))
