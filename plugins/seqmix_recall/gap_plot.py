"""Where AR hits fall in a window, as a picture."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqmix.plots import new_figure, png_of

__all__ = ["draw_places", "place_bins"]

BINS = 32


def place_bins(
    hits: NDArray[np.int64], targets: NDArray[np.int64], bins: int = BINS
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Edges ``[b + 1]``, and hits and targets ``[b]`` between them, of counts by place."""
    edges = np.unique(np.linspace(0, len(hits), min(bins, len(hits)) + 1).round().astype(np.int64))
    return edges, np.add.reduceat(hits, edges[:-1]), np.add.reduceat(targets, edges[:-1])


def draw_places(hits: NDArray[np.int64], targets: NDArray[np.int64], title: str) -> bytes:
    """A PNG: hits by place, and their share of the targets there.

    ConfigError without matplotlib. Equal counts give equal bytes.
    """
    edges, found, asked = place_bins(hits, targets)
    shares = 100 * found / np.maximum(asked, 1)
    figure = new_figure(7, 5, 150)
    upper, lower = figure.subplots(2, 1, sharex=True)
    upper.bar(edges[:-1], found, np.diff(edges), align="edge", color="tab:blue", edgecolor="white")
    upper.set(ylabel="AR hits", title=title)
    lower.stairs(shares, edges, color="tab:orange", fill=True, alpha=0.8)
    lower.set(xlabel="place of the target in its window", ylabel="% of the targets there")
    lower.set(xlim=(0, len(hits)), ylim=(0, None))
    for axes in (upper, lower):
        axes.grid(alpha=0.3, axis="y")
        axes.set_axisbelow(True)
    return png_of(figure)
