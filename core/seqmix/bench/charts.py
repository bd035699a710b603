"""Charts as SVG that stands in the page: its colours are classes, so that light and dark work.

No style stands in the markup: the page's policy forbids it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Bar", "Series", "bars", "lines"]

_WIDTH, _HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 12, 40
_ROW, _NAME = 26, 150
_COLOURS = 8


@dataclass(frozen=True)
class Series:
    """A contestant's points; ``place`` is its colour and marker everywhere."""

    name: str
    place: int
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Bar:
    """A contestant's figure, with the text that stands beside it."""

    name: str
    place: int
    value: float
    text: str


def lines(series: Sequence[Series], x_name: str, y_name: str, *, percent: bool = False) -> str:
    """Lines over a logarithmic x; y is logarithmic too, or percent from 0."""
    points = [point for one in series for point in one.points]
    if not points:
        return ""
    xs = sorted({x for x, _ in points})
    x_axis = _Log(xs[0], xs[-1], _LEFT, _WIDTH - _RIGHT)
    ys = [y for _, y in points]
    bottom = _HEIGHT - _BOTTOM
    y_axis = (
        _Linear(0, max(1.0, *ys), bottom, _TOP) if percent else _Log(min(ys), max(ys), bottom, _TOP)
    )
    label = f"{y_name} over {x_name}"
    parts = [_grid(x_axis, xs, y_axis, percent), _names(x_name, y_name)]
    parts += [_line(one, x_axis, y_axis) for one in series if one.points]
    return _svg(_HEIGHT, label, "".join(parts))


def bars(found: Sequence[Bar], name: str) -> str:
    """Horizontal bars from 0, in the order given."""
    if not found:
        return ""
    most = max(bar.value for bar in found) or 1
    room = _WIDTH - _NAME - 90
    rows = []
    for i, bar in enumerate(found):
        y, width = 8 + i * _ROW, max(1.0, room * bar.value / most)
        rows.append(
            f'<text class="name" x="{_NAME - 8}" y="{y + 14}" text-anchor="end">'
            f"{escape(_short(bar.name))}</text>"
            f'<rect class="f{bar.place % _COLOURS}" x="{_NAME}" y="{y}" width="{width:.1f}" '
            f'height="{_ROW - 8}" rx="2"><title>{escape(bar.name)}: {escape(bar.text)}</title>'
            f'</rect><text x="{_NAME + width + 6:.1f}" y="{y + 14}">{escape(bar.text)}</text>'
        )
    return _svg(16 + _ROW * len(found), name, "".join(rows))


class _Log:
    """A logarithmic axis from pixels ``first`` to ``last``."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        # A little room, so that no point lies on the edge.
        room = (high / low) ** 0.06 if high > low else 1.5
        self._low, self._high = math.log(low / room), math.log(high * room)
        self._first, self._last = first, last

    def at(self, value: float) -> float:
        """Where a value lies."""
        share = (math.log(value) - self._low) / (self._high - self._low)
        return self._first + share * (self._last - self._first)

    def ticks(self) -> list[float]:
        """Round numbers within: 1, 2 and 5 of each power of ten, or only the first."""
        low, high = math.exp(self._low), math.exp(self._high)
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for factors in ((1, 2, 5), (1, 3), (1,)):
            found = [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]
            if len(found) <= 7:
                return found
        return found[:: math.ceil(len(found) / 7)]


class _Linear:
    """A linear axis."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        self._low, self._high, self._first, self._last = low, high, first, last

    def at(self, value: float) -> float:
        """Where a value lies."""
        share = (value - self._low) / (self._high - self._low)
        return self._first + share * (self._last - self._first)

    def ticks(self) -> list[float]:
        """Quarters, or coarser where there is more than one whole."""
        step = 0.25 * math.ceil(self._high - self._low)
        count = math.floor((self._high - self._low) / step + 1e-9)
        return [self._low + i * step for i in range(count + 1)]


def _grid(x_axis: _Log, xs: Sequence[float], y_axis: _Log | _Linear, percent: bool) -> str:
    parts = []
    for tick in y_axis.ticks():
        y = y_axis.at(tick)
        text = f"{tick:.0%}" if percent else f"{tick:,.10g}"
        whole = ' class="whole"' if percent and tick == 1 else ' class="grid"'
        parts.append(
            f'<line{whole} x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        )
    for x in _apart(xs, x_axis):
        at, bottom = x_axis.at(x), _HEIGHT - _BOTTOM
        parts.append(
            f'<line class="grid" x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{bottom}"/>'
            f'<text x="{at:.1f}" y="{bottom + 15}" text-anchor="middle">{x:g}</text>'
        )
    return "".join(parts)


def _apart(xs: Sequence[float], axis: _Log) -> list[float]:
    """Those whose labels have room, the last among them."""
    kept: list[float] = []
    for x in reversed(xs):
        if not kept or axis.at(kept[-1]) - axis.at(x) > 34:
            kept.append(x)
    return kept[::-1]


def _names(x_name: str, y_name: str) -> str:
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    return (
        f'<text class="axis" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 6}" '
        f'text-anchor="middle">{escape(x_name)}</text>'
        f'<text class="axis" transform="translate(12 {middle}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_name)}</text>'
    )


def _line(one: Series, x_axis: _Log, y_axis: _Log | _Linear) -> str:
    places = [(x_axis.at(x), y_axis.at(y)) for x, y in one.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(
        f'<circle class="f{one.place % _COLOURS}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>'
        f"{escape(one.name)}: {value:.4g} at {at:g}</title></circle>"
        for (x, y), (at, value) in zip(places, one.points, strict=True)
    )
    return f'<polyline class="s{one.place % _COLOURS}" points="{path}"/>{dots}'


def _short(name: str) -> str:
    return name if len(name) <= 18 else f"{name[:17]}…"


def _svg(height: int, label: str, content: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label, quote=True)}">'
        f"{content}</svg>"
    )
