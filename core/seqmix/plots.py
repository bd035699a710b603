"""Figures as PNG files, for evaluations; they need ``pip install "seqmix[plots]"``."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from seqmix.errors import ConfigError
from seqmix.whole_file import write_whole

__all__ = ["check_plots", "new_figure", "png_of", "save_figure"]

INSTALL = 'plots need matplotlib; pip install "seqmix[plots]"'


def check_plots(otherwise: str = "") -> None:
    """ConfigError where matplotlib is missing: better before long work than after it.

    ``otherwise`` says what else can be done about it.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError(f"{INSTALL}, or {otherwise}" if otherwise else INSTALL)


def new_figure(width: float, height: float, dpi: int = 130) -> Any:
    """A figure of so many inches that belongs to nobody else: pyplot's state is not touched."""
    check_plots()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def png_of(figure: Any) -> bytes:
    """The figure as a PNG; equal figures give equal bytes."""
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def save_figure(figure: Any, path: Path) -> None:
    """Write a PNG, whole or not at all."""
    write_whole(path, png_of(figure))
