"""Recall of every kind of model on multi-query associative recall, at one width and one budget.

Run ``python benchmarks/mqar.py``; it takes 10 to 15 minutes on two cores and writes
``benchmarks/results/mqar.csv`` and ``mqar.png``. All models have two layers of width 64, see the
same 20,000 rows of 64 tokens with 4 pairs, vocabulary 256, for at most 800 updates of 64 rows, at
two learning rates of which the better one counts. Neither the held-out rows nor the seed of the
weights were looked at when the models were tuned. The exit status is 1 unless

- BaseConv with attention recalls more than 99 %,
- BaseConv with learned selection more than 95 %, attending from a quarter of the positions at most
  (counted on the held-out rows), and
- all of it took less than 20 minutes.

The other models are reported, whatever they reach. ``--out`` names a folder that is kept: the same
command goes on there, and then says nothing about the time.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqmix.training.sweeps.pool import Processes
from seqmix.training.sweeps.sweep import TIMES, Sweep
from seqmix.training.sweeps.table import Cells, write_csv
from seqmix_recall.best import Best, best_rates
from seqmix_recall.mqar_sweep import MQARSweep, Shape
from seqmix_recall.plots import plot_learning

ATTENTION, LEARNED = "base_conv+attention", "base_conv+learned"
RECIPES = [ATTENTION, LEARNED, "based", "h3", "hyena", "rwkv4", "mlstm", "base_conv"]
MINUTES = 20
COLUMNS = (
    "mixer", "width", "layers", "length", "pairs", "rate", "best", "status", "steps",
    "held_out_accuracy", "attended_share", "attended_most", "state_bytes", "parameters", "seconds",
)  # fmt: skip


def grid() -> MQARSweep:
    """What is trained."""
    return MQARSweep(
        mixers=RECIPES,
        dims=[64],
        shapes=[Shape(length=64, pairs=4)],
        rates=[1e-2, 3e-3],
        seeds=[2],
        vocab_size=256,
        train_rows=20_000,
        test_rows=1_000,
        test_seed=20,
        batch=64,
        steps=800,
        test_every=50,
        stop_at=0.999,
        test_batch=250,
    )


def main() -> int:
    """Train, write table and plot, and check what is claimed; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="keep the runs there, and go on with them")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    if options.out is not None:
        return measure(options.out, options.workers, options.results)
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), options.workers, options.results)


def measure(out: Path, workers: int, results: Path) -> int:
    """The whole of it in one folder."""
    started = time.monotonic()
    sweep = Sweep(grid().runs(), out)
    whole = len(sweep.left()) == len(sweep.runs)
    report = sweep.run(Processes(workers, threads=1))
    minutes = (time.monotonic() - started) / 60 if whole else None
    best = best_rates(report.rows)
    rows = [completed(row, best, out) for row in report.rows]
    write_csv(results / "mqar.csv", COLUMNS, rows)
    plot_learning(best, curves(sweep, best), results / "mqar.png")
    return judge(rows, minutes)


def completed(row: Cells, best: Sequence[Best], out: Path) -> Cells:
    """A row with its seconds, and whether its rate is the best of its model."""
    with (out / TIMES).open(encoding="utf-8", newline="") as file:
        seconds = {times["name"]: times["seconds"] for times in csv.DictReader(file)}
    taken = seconds.get(str(row["name"])) or None
    chosen = any((point.mixer, point.rate) == (row["mixer"], row["rate"]) for point in best)
    return {**row, "best": chosen, "seconds": round(float(taken), 1) if taken else None}


def curves(sweep: Sweep, best: Sequence[Best]) -> dict[str, list[tuple[int, float]]]:
    """Steps and held-out accuracies of every model at its best rate."""
    rates = {point.mixer: point.rate for point in best}
    found: dict[str, list[tuple[int, float]]] = {}
    for run in sweep.runs:
        if rates.get(str(run.labels["mixer"])) == run.labels["rate"]:
            found[str(run.labels["mixer"])] = curve(sweep.folder(run) / "metrics.csv")
    return found


def curve(path: Path) -> list[tuple[int, float]]:
    """Steps and held-out accuracies of one training."""
    with path.open(encoding="utf-8", newline="") as file:
        tested = [row for row in csv.DictReader(file) if row["held_out_accuracy"]]
    return [(int(row["step"]), float(row["held_out_accuracy"])) for row in tested]


def judge(rows: Sequence[Mapping[str, Any]], minutes: float | None) -> int:
    """Print every model at its best rate, and what of the claims does not hold."""
    chosen = {row["mixer"]: row for row in rows if row["best"]}
    for mixer in RECIPES:
        row = chosen.get(mixer)
        print(f"{mixer:<20} {'did not end' if row is None else described(row)}")
    for row in rows:
        if row["status"] == "failed":
            print(f"{row['name']} has failed: {row['error']}")
    broken = [claim for claim, holds in claims(chosen, minutes).items() if not holds]
    print(f"{minutes:.1f} minutes" if minutes is not None else "gone on with: no time is claimed")
    for claim in broken:
        print(f"DOES NOT HOLD: {claim}")
    return int(bool(broken))


def described(row: Mapping[str, Any]) -> str:
    """Accuracy, and where a model selects the share of positions that it attends from."""
    share = row.get("attended_share")
    attended = "" if share is None else f", attends from {share:.1%} of the positions"
    seconds = "" if row["seconds"] is None else f", {row['seconds']:.0f} s"
    return (
        f"{row['held_out_accuracy'] or 0.0:.4f} at rate {row['rate']:g} after {row['steps']} "
        f"updates{attended}{seconds}"
    )


def claims(chosen: Mapping[str, Mapping[str, Any]], minutes: float | None) -> dict[str, bool]:
    """Everything that should hold, and whether it does."""

    def accuracy(mixer: str) -> float:
        return float(chosen.get(mixer, {}).get("held_out_accuracy") or 0.0)

    share = chosen.get(LEARNED, {}).get("attended_share")
    return {
        f"{ATTENTION} recalls more than 99 %": accuracy(ATTENTION) > 0.99,
        f"{LEARNED} recalls more than 95 %": accuracy(LEARNED) > 0.95,
        f"{LEARNED} attends from a quarter at most": share is not None and share <= 0.25,
        f"all models ended: {', '.join(RECIPES)}": set(chosen) == set(RECIPES),
        f"it took less than {MINUTES} minutes": minutes is None or minutes < MINUTES,
    }


if __name__ == "__main__":
    sys.exit(main())
