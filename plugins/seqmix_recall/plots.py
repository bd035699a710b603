"""Figures of an MQAR sweep: accuracy against width, and against bytes of state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqmix.plots import new_figure, save_figure
from seqmix_recall.best import Best

__all__ = ["plot_by_state", "plot_by_width", "plot_learning"]

MARKERS = "osD^vP*X<>"
PANEL = (3.4, 3.2)
"""Inches."""
DOTS_PER_INCH = 120


def plot_by_width(points: Sequence[Best], path: Path) -> None:
    """A panel per length and number of pairs, a line per model, as figure 2 of the Zoology paper.

    The dotted line is 1 / pairs, what a model gets that knows the values of a row and not whose
    they are. Bars are the lowest and highest of several seeds.
    """
    _plot(points, path, "model width", lambda point: point.width, True)


def plot_by_state(points: Sequence[Best], path: Path) -> None:
    """The same against the bytes that a row of the panel's length leaves behind as state."""
    _plot(points, path, "bytes of state", lambda point: point.state_bytes, False)


def plot_learning(
    points: Sequence[Best], curves: Mapping[str, Sequence[tuple[int, float]]], path: Path
) -> None:
    """Held-out accuracies of models of one width as they learn, and against their state.

    ``curves`` has steps with accuracies for the mixer of every point.
    """
    figure = new_figure(10.5, 4.0, DOTS_PER_INCH)
    learning, state = figure.subplots(1, 2, sharey=True)
    pairs = points[0].pairs
    for number, point in enumerate(points):
        look = _look(number)
        steps, accuracies = zip(*curves[point.mixer], strict=True)
        learning.plot(steps, accuracies, label=point.mixer, markevery=(number, 8), **look)
        state.plot([point.state_bytes], [point.accuracy], **{**look, "linestyle": "none"})
    title = f"{points[0].length} tokens, {pairs} pairs, width {points[0].width}"
    _dress(learning, title, "updates", pairs)
    _dress(state, "at the end", "bytes of state", pairs)
    learning.set_xscale("linear")
    learning.set_ylabel("accuracy on held-out rows")
    _legend(figure, [learning, state])
    save_figure(figure, path)


def _plot(
    points: Sequence[Best], path: Path, label: str, size: Callable[[Best], int], ticks: bool
) -> None:
    shapes = sorted({(point.length, point.pairs) for point in points})
    mixers = list(dict.fromkeys(point.mixer for point in points))
    width, height = PANEL
    figure = new_figure(width * len(shapes) + 2.0, height, DOTS_PER_INCH)
    panels = figure.subplots(1, len(shapes), squeeze=False, sharey=True)[0]
    for panel, (length, pairs) in zip(panels, shapes, strict=True):
        own = [point for point in points if (point.length, point.pairs) == (length, pairs)]
        for number, mixer in enumerate(mixers):
            chosen = sorted((p for p in own if p.mixer == mixer), key=size)
            _draw(panel, chosen, size, number, mixer)
        _dress(panel, f"{length} tokens, {pairs} pairs", label, pairs)
        if ticks:
            widths = sorted({point.width for point in own})
            panel.set_xticks(widths, [str(width) for width in widths])
            panel.minorticks_off()
    panels[0].set_ylabel("accuracy")
    _legend(figure, panels)
    save_figure(figure, path)


def _draw(
    panel: Any, points: Sequence[Best], size: Callable[[Best], int], number: int, mixer: str
) -> None:
    if not points:
        return
    accuracies = [point.accuracy for point in points]
    below = [point.accuracy - point.lowest for point in points]
    above = [point.highest - point.accuracy for point in points]
    panel.errorbar(
        [size(point) for point in points],
        accuracies,
        yerr=[below, above] if any(below + above) else None,
        label=mixer,
        capsize=2,
        **_look(number),
    )


def _look(number: int) -> dict[str, Any]:
    """Colour, marker and line of the model of a number, the same in every panel."""
    return {
        "color": f"C{number % 10}",
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": ("-", "--")[number // 10 % 2],
        "markersize": 5,
        "linewidth": 1.2,
    }


def _dress(panel: Any, title: str, label: str, pairs: int) -> None:
    panel.set_title(title, fontsize=10)
    panel.set_xscale("log", base=2)
    panel.set_ylim(-0.03, 1.03)
    panel.set_xlabel(label)
    panel.grid(alpha=0.3)
    panel.axhline(1 / pairs, color="0.4", linestyle=":", linewidth=1, label="1 / pairs")


def _legend(figure: Any, panels: Iterable[Any]) -> None:
    """One for all panels, with every name once."""
    handles = {h.get_label(): h for panel in panels for h in panel.get_legend_handles_labels()[0]}
    figure.legend(handles=list(handles.values()), loc="outside right upper", fontsize=8)
