"""``seqmix eval mqar``: how well models recall, against their width and their state."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqmix.errors import ConfigError

__all__ = ["evaluate_mqar"]


def evaluate_mqar(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder of this sweep; needed to run.")
    ] = None,
    preset: Annotated[
        str, typer.Option(help="small, figure2 or based; the other options change it.")
    ] = "small",
    mixers: Annotated[
        str | None,
        typer.Option(metavar="A,B+C,..", help="Recipes; --recipes lists them. + takes turns."),
    ] = None,
    dims: Annotated[str | None, typer.Option(metavar="D,..", help="Widths of the models.")] = None,
    kv: Annotated[
        str | None,
        typer.Option(metavar="L:K,..", help="Tokens of a row, and its pairs: 64:4,128:8."),
    ] = None,
    rates: Annotated[
        str | None, typer.Option(metavar="R,..", help="Learning rates; the best is plotted.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="N,..", help="Of weights and order.")] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Of every model.")] = None,
    vocab_size: Annotated[int | None, typer.Option(min=1, help="Of rows and models.")] = None,
    train_rows: Annotated[int | None, typer.Option(min=1, help="Rows to train on.")] = None,
    test_rows: Annotated[int | None, typer.Option(min=1, help="Rows that are held out.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Rows of an update.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Updates of every model.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="The same in passes.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes; by default one per CPU or GPU. 0: none.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Of every process.")] = 1,
    ray: Annotated[bool, typer.Option("--ray", help="Run on Ray instead.")] = False,
    ray_address: Annotated[
        str | None, typer.Option(help="A Ray cluster; by default $RAY_ADDRESS, or one here.")
    ] = None,
    parquet: Annotated[bool, typer.Option("--parquet", help="Write the table so too.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep/--drop", help="Keep the checkpoints of finished runs.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--list", "--dry-run", help="Print the runs, and do nothing.")
    ] = False,
    recipes: Annotated[bool, typer.Option("--recipes", help="Print the recipes.")] = False,
) -> int:
    """Train models on multi-query associative recall, and plot how well they recall.

    Writes table.csv (all runs), best.csv (the best rate of every model), accuracy_by_width.png and
    accuracy_by_state.png. The same command goes on where it was stopped; the exit status is 1 when
    a run has failed.
    """
    from seqmix_recall import mqar_command

    if recipes:
        return mqar_command.print_recipes()
    changes = {
        "mixers": mqar_command.names(mixers),
        "dims": mqar_command.integers("--dims", dims),
        "shapes": mqar_command.shapes("--kv", kv),
        "rates": mqar_command.numbers("--rates", rates),
        "seeds": mqar_command.integers("--seeds", seeds),
        "layers": layers,
        "vocab_size": vocab_size,
        "train_rows": train_rows,
        "test_rows": test_rows,
        "batch": batch,
        "steps": steps,
        "epochs": epochs,
    }
    sweep = mqar_command.changed(preset, changes)
    if dry_run:
        return mqar_command.print_runs(sweep)
    if out is None:
        raise ConfigError("seqmix eval mqar: --out is missing, the folder of the sweep; give one")
    executor = mqar_command.executor(workers, threads, ray or ray_address is not None, ray_address)
    return mqar_command.run(sweep, out, executor, parquet, keep)
