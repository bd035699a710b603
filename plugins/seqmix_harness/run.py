"""Tasks of lm-eval run on a model, to results that can be written as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqmix.errors import ConfigError, SeqmixError
from seqmix.whole_file import write_whole
from seqmix_harness.language_model import INSTALL
from seqmix_harness.tasks import Wanted, find_tasks

__all__ = ["run_tasks", "show_table", "write_results"]

PARTS = ("results", "groups", "n-samples", "n-shot", "versions", "configs", "higher_is_better")


def run_tasks(
    language_model: Any,
    wanted: Sequence[Wanted],
    folders: Sequence[Path] = (),
    *,
    limit: int | None = None,
    seed: int = 0,
    cache: Path | None = None,
    chat: bool = False,
) -> dict[str, Any]:
    """The results of tasks, as lm-eval gives them, of those with equal shots at a time.

    ``limit`` takes the first so many questions of each task. Answers are kept in ``cache``, a
    SQLite file, as they come, so that a stopped run goes on. ``seed`` draws the solved examples.
    ConfigError for unknown tasks, SeqmixError where a task cannot be had, such as its data.
    """
    try:
        from lm_eval import simple_evaluate
    except ImportError as error:
        raise ConfigError(INSTALL) from error
    if not wanted:
        raise ConfigError("no task was asked for; --tasks takes names, --preset a list of them")
    manager = find_tasks([task.name for task in wanted], folders)
    merged: dict[str, Any] = {part: {} for part in PARTS}
    for shots in dict.fromkeys(task.shots for task in wanted):
        names = [task.name for task in wanted if task.shots == shots]
        try:
            found = simple_evaluate(
                model=language_model,
                tasks=names,
                num_fewshot=shots,
                limit=limit,
                task_manager=manager,
                use_cache=None if cache is None else str(cache),
                log_samples=False,
                apply_chat_template=chat,
                random_seed=seed,
                numpy_random_seed=seed,
                torch_random_seed=seed,
                fewshot_random_seed=seed,
            )
        except (OSError, ValueError, KeyError, ConnectionError) as error:
            raise SeqmixError(
                f"lm-eval could not run {', '.join(names)}: {_first_line(error)}; a data set that "
                "is not in the cache of the Hugging Face hub needs the network once"
            ) from error
        for part in PARTS:
            merged[part].update(found.get(part) or {})
    return merged


def write_results(results: Mapping[str, Any], path: Path) -> None:
    """Write results as JSON, functions and types in them as text; the file is whole or absent."""
    text = json.dumps(results, indent=2, default=str, ensure_ascii=False)
    write_whole(path, text + "\n")


def show_table(results: Mapping[str, Any]) -> str:
    """One line per task and metric."""
    rows = [("task", "shots", "metric", "value", "error")]
    for task, metrics in results["results"].items():
        for key, value in metrics.items():
            metric, _, kind = key.partition(",")
            if not kind or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            name = metric if kind == "none" else f"{metric} ({kind})"
            error = metrics.get(f"{metric}_stderr,{kind}")
            shots = results["n-shot"].get(task, "")
            rows.append((task, str(shots), name, f"{value:.4f}", _error(error)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _error(value: Any) -> str:
    return f"± {value:.4f}" if isinstance(value, int | float) else ""


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
