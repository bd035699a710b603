"""Emitters that write an op by one of its decompositions, chosen when the file runs.

Legalization must choose once for all lengths; a file can hold two forms and take the faster one.
"""

from __future__ import annotations

from collections.abc import Sequence

from seqmix_ir.builder import Builder
from seqmix_ir.dims import Size
from seqmix_ir.graph import Op
from seqmix_onnxruntime.emit import Emitter

__all__ = ["choose_style", "write_style"]


def write_style(e: Emitter, op: Op, inputs: Sequence[str], style: str) -> list[str]:
    """Emit the ops of a decomposition; they must all have emitters. Names of the results."""
    b = Builder(op.loc.inside(f"{op.name}.{style}"))
    results = op.defn.decompositions()[style](b, op)
    present = [(v, n) for v, n in zip(op.operands, inputs, strict=True) if v is not None]
    e.names.update(present)
    outputs = [e.root.fresh(op.name) for _ in results]
    e.block(b.block([v for v, _ in present], results), outputs)
    return outputs


def choose_style(
    e: Emitter, op: Op, inputs: Sequence[str], size: Size, limit: int, small: str, large: str
) -> list[str]:
    """Style ``small`` where ``size`` is at most ``limit`` when the file runs, else ``large``."""
    if isinstance(size, int):
        return write_style(e, op, inputs, small if size <= limit else large)
    return e.choice(
        e.one("LessOrEqual", e.size(size), e.ints(limit)),
        op.results,
        lambda inner: write_style(inner, op, inputs, small),
        lambda inner: write_style(inner, op, inputs, large),
    )
