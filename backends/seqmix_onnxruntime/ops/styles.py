"""Emitters that write an op by one of its decompositions, chosen when the file runs.

Legalization must choose once for all lengths; a file can hold two forms and take the faster one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from seqmix_ir.builder import Builder
from seqmix_ir.dims import Size, show_size
from seqmix_ir.graph import Op
from seqmix_onnxruntime.emit import Emit, Emitter

__all__ = ["choose_form", "choose_style", "write_style"]


def write_style(e: Emitter, op: Op, inputs: Sequence[str], style: str) -> list[str]:
    """Emit the ops of a decomposition; they must all have emitters. Names of the results."""
    b = Builder(op.loc.inside(f"{op.name}.{style}"))
    results = op.defn.decompositions()[style](b, op)
    present = [(v, n) for v, n in zip(op.operands, inputs, strict=True) if v is not None]
    e.names.update(present)
    outputs = [e.root.fresh(op.name) for _ in results]
    e.block(b.block([v for v, _ in present], results), outputs)
    return outputs


def choose_form(
    e: Emitter, op: Op, inputs: list[str], size: Size, limit: int, small: Emit, large: Emit
) -> list[str]:
    """What ``small`` writes where ``size`` is at most ``limit`` when the file runs, else ``large``.

    The question is asked once in a file; it is not written at all where the size is a number.
    """
    if isinstance(size, int):
        return list((small if size <= limit else large)(e, op, inputs))
    few = e.top.once(
        ("at most", show_size(size), limit),
        lambda: e.top.one("LessOrEqual", e.size(size), e.ints(limit)),
    )
    return e.choice(
        few,
        op.results,
        lambda inner: small(inner, op, inputs),
        lambda inner: large(inner, op, inputs),
    )


def choose_style(
    e: Emitter, op: Op, inputs: list[str], size: Size, limit: int, small: str, large: str
) -> list[str]:
    """:func:`choose_form` between two decompositions."""
    forms = (partial(write_style, style=style) for style in (small, large))
    return choose_form(e, op, inputs, size, limit, *forms)
