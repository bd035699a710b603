"""Which ops may be in a group, over which rows, and what composite ones consist of there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from seqmix_ir.builder import Builder
from seqmix_ir.dims import Size
from seqmix_ir.graph import Op
from seqmix_ir.ops.rules import normal_axes, normal_axis
from seqmix_ir.passes.group_pull import is_layout, is_pointwise

__all__ = ["COMPOSITE", "FOREIGN", "Expanded", "Refusal", "expanded", "possible_leads", "refused"]

Refusal: TypeAlias = Callable[[Op], "str | None"]
"""None when a backend can generate the op within a group, else the reason why not."""

COMPOSITE = {"softmax": "direct", "rms_norm": "direct", "layer_norm": "direct"}
"""Ops along a row, and the decomposition that a group takes of each."""

FOREIGN = "it is no op of single elements or of rows"
"""Why most ops that are in no group are not."""


@dataclass(frozen=True)
class Expanded:
    """A composite op in simpler ops, the last of which is ``maker``."""

    ops: tuple[Op, ...]
    maker: Op


def expanded(this: Op) -> Expanded:
    """A composite op taken apart."""
    b = Builder(this.loc.inside(f"{this.name}.{COMPOSITE[this.name]}"))
    (result,) = this.defn.decompositions()[COMPOSITE[this.name]](b, this)
    maker = next(o for o in b.ops if result in o.results)
    # The same op under the name of the composite one's result, so that readers find it.
    last = Op(maker.defn, maker.operands, this.results, maker.body, maker.loc)
    return Expanded(tuple(last if o is maker else o for o in b.ops), last)


def refused(this: Op, refuse: Refusal) -> str | None:
    """Why an op belongs in no group; None when it may."""
    if is_layout(this):
        return refuse(this)
    if this.name in COMPOSITE:
        axis = this.defn.attributes().get("axis", -1)
        x = this.operands[0]
        if x is None or normal_axis(axis, x.type.rank) != x.type.rank - 1:
            return "it is not along the last axis"
        return refuse(this)
    if this.name == "reduce":
        (x,) = this.values
        if normal_axes(this.defn.attributes()["axes"], x.type.rank) != (x.type.rank - 1,):
            return "it does not reduce the last axis alone"
        return refuse(this)
    return refuse(this) if is_pointwise(this) else FOREIGN


def possible_leads(this: Op) -> tuple[tuple[Size, ...], ...]:
    """The rows that an op may run over, the likeliest first."""
    shape = this.results[0].type.shape
    if this.name == "reduce":
        return (this.values[0].type.shape[:-1],)
    return (shape[:-1], shape)
