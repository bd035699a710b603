"""What processes do that are killed while they save; functions of a module, for they are forked."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from itertools import count
from pathlib import Path

from tests.core import tiny

from seqmix.whole_file import write_whole

__all__ = [
    "RECORDS",
    "export_models",
    "remember_values",
    "save_executables",
    "save_models",
    "store_entries",
    "write_entry",
    "write_tables",
]

LONGEST = 120.0
"""Seconds until a process ends by itself that nobody has killed: the tests were interrupted."""

RECORDS = [[{"name": f"{kind}-{i}", "loss": float(i)} for i in range(2000)] for kind in "ab"]
"""Two tables of one shape."""


def save_models(mark: Path, folder: Path) -> None:
    """Two models in turn, as ``save_model`` writes them."""
    from seqmix.storage import save_model

    models = [tiny.model(seed=seed) for seed in (0, 1)]
    _for_ever(mark, folder, lambda place, turn: save_model(models[turn % 2], place))


def save_executables(mark: Path, folder: Path, made: list[Path]) -> None:
    """Two compiled models in turn, loaded from where they were saved before."""
    from seqmix.compile import load

    executables = [load(path) for path in made]
    _for_ever(mark, folder, lambda place, turn: executables[turn % 2].save(place))


def export_models(mark: Path, folder: Path, models: list[Path], options: list[str]) -> None:
    """``seqmix export`` of two models in turn; compilations come from the cache."""
    from seqmix.cli import invoke

    def export(place: Path, turn: int) -> None:
        given = ["export", str(models[turn % 2]), str(place), "--force", *options]
        if status := invoke(given):
            raise SystemExit(status)

    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        _for_ever(mark, folder, export)


def write_entry(folder: Path, key: str) -> None:
    """An entry of several files whose content tells its key."""
    (folder / "deep").mkdir()
    for place in ("weights", "deep/more"):
        (folder / place).write_text(key * 20_000, encoding="utf-8")


def store_entries(mark: Path, home: Path) -> None:
    """New entries of a cache that has room for a few: old ones are pushed out meanwhile."""
    from seqmix import cache

    def store(place: Path, turn: int) -> None:
        os.environ["SEQMIX_CACHE_DIR"] = str(place)
        key = f"{mark.name}-{turn}"
        cache.store(key, partial(write_entry, key=key))
        cache.fetch(key)

    os.environ["SEQMIX_CACHE_LIMIT"] = "4M"
    _for_ever(mark, home, store)


def remember_values(mark: Path, home: Path) -> None:
    """A choice and a measurement that are forgotten and made again, with two values in turn."""
    from seqmix import cache

    def remember(place: Path, turn: int) -> None:
        os.environ["SEQMIX_CACHE_DIR"] = str(place)
        for kind in ("auto", "triton-tuning"):
            (place / kind / cache.key_of("what")).unlink(missing_ok=True)
            cache.remember(kind, "what", partial(str.__mul__, "ab"[turn % 2], 50_000))

    _for_ever(mark, home, remember)


def write_tables(mark: Path, folder: Path) -> None:
    """Two tables in turn, as a sweep writes its CSV and a benchmark its JSON."""
    from seqmix.bench.result import Case, Result, Row, Settings, write_result
    from seqmix.training.sweeps.table import write_csv

    settings = Settings("m", None, ["torch"], [], 1, 1, 1, 0)

    def write(place: Path, turn: int) -> None:
        rows = RECORDS[turn % 2]
        write_csv(place / "table.csv", ("name", "loss"), rows)
        cases = [Case("prefill", 8, 1, [1.0], [1.0], [Row(str(r["name"])) for r in rows[:500]])]
        write_result(Result(settings, {}, 1, cases=cases), place / "result.json")

    _for_ever(mark, folder, write)


def _for_ever(mark: Path, folder: Path, save: Callable[[Path, int], None]) -> None:
    """Save elsewhere, so that all is loaded, say in ``mark`` how long it takes, and then begin."""
    warm = folder.with_name(f"warm-{mark.name}")
    save(warm, 0)
    began = time.perf_counter()
    save(warm, 1)
    seconds = time.perf_counter() - began
    shutil.rmtree(warm)
    write_whole(mark, repr(seconds))
    end = time.monotonic() + LONGEST
    for turn in count():
        save(folder, turn)
        if time.monotonic() > end:
            return
