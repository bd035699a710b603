"""What is left of an MQAR sweep when it is done: the best of every model, and two plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from seqmix.training.sweeps.sweep import SweepReport
from seqmix.training.sweeps.table import Cells, write_csv
from seqmix_recall.best import Best, best_rates
from seqmix_recall.plots import plot_by_state, plot_by_width

__all__ = ["BEST", "BY_STATE", "BY_WIDTH", "Results", "write_results"]

BEST = "best.csv"
BY_WIDTH = "accuracy_by_width.png"
BY_STATE = "accuracy_by_state.png"


@dataclass(frozen=True)
class Results:
    """The best rate of every model on every shape, and the runs without figures."""

    best: Sequence[Best]
    failed: Sequence[Cells]

    def text(self) -> str:
        """A line per model and shape."""
        widest = max((len(point.mixer) for point in self.best), default=0)
        return "\n".join(
            f"{point.mixer:<{widest}}  width {point.width:>4}  {point.length:>4} tokens, "
            f"{point.pairs:>3} pairs  rate {point.rate:<8g} accuracy {point.accuracy:.4f}"
            for point in self.best
        )


def write_results(report: SweepReport, out: Path) -> Results:
    """Write ``best.csv`` and, if any run has ended, the plots, into the folder of the sweep."""
    best = best_rates(report.rows)
    columns = [field.name for field in fields(Best)]
    write_csv(out / BEST, columns, [point.cells() for point in best])
    if best:
        plot_by_width(best, out / BY_WIDTH)
        plot_by_state(best, out / BY_STATE)
    return Results(best, report.failed)
