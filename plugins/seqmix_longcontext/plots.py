"""Plots of the evaluations as PNG; they need ``pip install "seqmix[plots]"``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqmix.plots import new_figure, save_figure

__all__ = ["plot_passkey", "plot_perplexity", "plot_temperature"]


def plot_perplexity(
    rows: Sequence[Mapping[str, Any]], path: Path, title: str, context_length: int | None = None
) -> None:
    """A line per method over the lengths; ``context_length`` marks where training ended."""
    figure = new_figure(7.5, 4.5)
    axes = figure.add_subplot()
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for number, method in enumerate(methods):
        own = [row for row in rows if row["method"] == method]
        axes.plot(
            [int(row["length"]) for row in own],
            [float(row["perplexity"]) for row in own],
            marker="osD^vPX*"[number % 8],
            color=f"C{number % 10}",
            label=method,
        )
    lengths = sorted({int(row["length"]) for row in rows})
    if context_length is not None and lengths[0] <= context_length <= lengths[-1]:
        axes.axvline(context_length, color="gray", linestyle=":", linewidth=1)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xticks(lengths)
    axes.set(xlabel="context in tokens", ylabel="perplexity", title=title)
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    save_figure(figure, path)


def plot_passkey(rows: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """A heat map per method: the share of right answers by depth (down) and length (across)."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lengths = sorted({row["length"] for row in rows})
    depths = sorted({row["depth"] for row in rows})
    figure = new_figure(2 + 1.1 * len(lengths) * len(methods), 1.8 + 0.5 * len(depths))
    panels = figure.subplots(1, len(methods), squeeze=False, sharey=True)[0]
    for panel, method in zip(panels, methods, strict=True):
        shares = {
            (row["depth"], row["length"]): row["accuracy"]
            for row in rows
            if row["method"] == method
        }
        grid = [[shares.get((depth, n), float("nan")) for n in lengths] for depth in depths]
        image = panel.imshow(grid, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
        for (depth, length), share in shares.items():
            place = (lengths.index(length), depths.index(depth))
            panel.text(*place, f"{share:.0%}", ha="center", va="center", fontsize=8)
        panel.set_xticks(range(len(lengths)), lengths)
        panel.set_yticks(range(len(depths)), [f"{depth:.0%}" for depth in depths])
        panel.set(title=method, xlabel="context in tokens")
    panels[0].set_ylabel("depth of the key")
    figure.colorbar(image, ax=panels, label="right answers")
    figure.suptitle(title)
    save_figure(figure, path)


def plot_temperature(
    rows: Sequence[Mapping[str, Any]],
    best: Sequence[Mapping[str, Any]],
    coefficient: float | None,
    path: Path,
) -> None:
    """Perplexity against 1/sqrt(t), a line per scale; and the best values against the scale."""
    figure = new_figure(10, 4.2)
    left, right = figure.subplots(1, 2)
    for number, found in enumerate(best):
        own = [r for r in rows if (r["method"], r["segment"]) == (found["method"], "all")]
        color = f"C{number % 10}"
        left.plot([r["value"] for r in own], [r["perplexity"] for r in own], "o-", color=color,
                  label=found["method"])  # fmt: skip
        left.axvline(found["best"], color=color, linestyle=":", linewidth=1)
    left.set(xlabel="1/sqrt(t)", ylabel="perplexity", title="dotted: lowest point")
    left.legend()
    scales = [row["scale"] for row in best]
    right.plot(scales, [row["best"] for row in best], "o", label="lowest perplexity")
    right.plot(scales, [row["paper"] for row in best], "k--", label="0.1 ln(s) + 1")
    if coefficient is not None:
        fitted = [coefficient * math.log(scale) + 1 for scale in scales]
        right.plot(scales, fitted, "-", label=f"fit: {coefficient:.3f} ln(s) + 1")
    right.set(xlabel="scale s", ylabel="1/sqrt(t)", title="best value")
    right.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
    save_figure(figure, path)
