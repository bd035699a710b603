"""The innermost loop of every product: a tile of sums in registers, one term at a time.

M rows, N columns, K terms. Six rows by two vectors of eight are 12 of AVX2's 16 registers: one
vector of a column's operands is read for six products, one broadcast row element for two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.rules.layout import number
from seqmix_tvm.writer import Writer

__all__ = ["PANEL", "TILE", "accumulated_tile", "covered", "share"]

PANEL = 16
"""Columns that lie side by side: two vectors."""

TILE = 6
"""Rows of a tile."""


def accumulated_tile(
    writer: Writer,
    dtype: str,
    terms: Any,
    rows: Sequence[Callable[[Any], Any]],
    panels: Sequence[Callable[[Any, Any], Any]],
    start: Callable[[int, int, Any], Any] | None = None,
    ahead: Callable[[Any], None] | None = None,
) -> tvm.Buffer:
    """Sums of ``row(k) * panel(k, lane)`` over ``k``: rows x panels x 16 of them, in that order.

    ``start(row, panel, lane)`` is what a sum starts from, 0 where it is None. ``ahead(k)`` asks for
    what a later term reads.
    """
    wide = len(panels) * PANEL
    begin = start or (lambda r, q, lane: number(0, dtype))
    sums = writer.local(dtype, len(rows) * wide)
    for r, q in product(range(len(rows)), range(len(panels))):
        with writer.loop(PANEL, "vectorized", "l") as lane:
            writer.store(sums, tvm.integer(r * wide + q * PANEL) + lane, begin(r, q, lane))
    with writer.loop(terms, name="k") as k:
        if ahead is not None:
            ahead(k)
        for r, row in enumerate(rows):
            term = writer.bind(tvm.cast(dtype, row(k)), "a")
            for q, panel in enumerate(panels):
                with writer.loop(PANEL, "vectorized", "l") as lane:
                    spot = tvm.integer(r * wide + q * PANEL) + lane
                    found = tvm.cast(dtype, panel(k, lane))
                    writer.store(sums, spot, sums[spot] + term * found)
    return sums


def share(total: Any, part: Any, parts: Any) -> Any:
    """Where the ``part``-th of ``parts`` shares of ``total`` things starts; they differ by one."""
    return tvm.call("floordiv", total * part, parts)


def covered(tile: Any, rows: Any) -> Any:
    """The first row of a tile; the last one reaches back where rows are left over.

    Its rows are then computed twice, to the same result: cheaper than a loop of its own for them.
    """
    return tvm.minimum(tile * tvm.integer(TILE), rows - tvm.integer(TILE))
