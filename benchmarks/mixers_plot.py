"""Draw what mixers_scaling.py measured: time, memory and a token's time against the length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["plot"]

COLUMNS = {
    "seconds": "CPU seconds of a forward",
    "megabytes": "MiB at the peak",
    "us_step": "us per token, decoding",
}
Row = dict[str, str]


def plot(rows: Sequence[Row], fits: Sequence[Row], path: Path) -> None:
    """A column of panels per backend, logarithmic; the legends name the exponents of the time."""
    try:
        import matplotlib
    except ImportError:
        print("matplotlib is not installed: no plot (pip install 'seqmix[plots]')")
        return
    matplotlib.use("agg")
    from matplotlib import pyplot

    backends = list(dict.fromkeys(row["backend"] for row in rows))
    size = (8 * len(backends), 13)
    figure, panels = pyplot.subplots(
        len(COLUMNS), len(backends), figsize=size, squeeze=False, sharey="row"
    )
    for across, backend in enumerate(backends):
        own = [row for row in rows if row["backend"] == backend]
        slopes = [fit for fit in fits if fit["backend"] == backend]
        for down, column in enumerate(COLUMNS):
            draw(panels[down][across], own, slopes, column)
        panels[0][across].set_title(f"{backend}, one thread")
    figure.suptitle("Two layers of one mixer, width 256, batch 1, float32 (exponents beside names)")
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def draw(panel: Any, rows: Sequence[Row], fits: Sequence[Row], column: str) -> None:
    """A line per mixer, of one colour everywhere, the steepest first in the legend."""
    order = sorted(enumerate(fits), key=lambda ranked: -float(ranked[1][column]))
    for rank, fit in order:
        own = [r for r in rows if r["mixer"] == fit["mixer"] and r[column] and float(r[column]) > 0]
        lengths, values = [int(r["length"]) for r in own], [float(r[column]) for r in own]
        style = {"marker": "o^sDv"[rank % 5], "markersize": 3, "color": f"C{rank % 10}"}
        line = ("-", "--", ":")[rank // 10]
        panel.loglog(lengths, values, line, label=f"{fit['mixer']} {fit[column]}", **style)
    panel.set_xlabel("tokens")
    panel.set_ylabel(COLUMNS[column])
    panel.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
