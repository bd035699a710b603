"""What a loop over time is made of, before it is written: passes, memory, independent axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from seqmix.errors import BackendError
from seqmix_ir.dims import Size
from seqmix_ir.graph import Block, Op, Value
from seqmix_ir.types import TensorType
from seqmix_tvm.kernels.follow import follow_axis
from seqmix_tvm.kernels.passes import Pass, plan_passes
from seqmix_tvm.kernels.step_product import in_panels, panel_type, shares_matrix
from seqmix_tvm.plan import Group, plan_block, with_copies

__all__ = ["Axis", "Loop", "planned_loop", "scan_scratch"]


@dataclass(frozen=True, eq=False)
class Axis:
    """An independent axis of the carries: its size, and where it is in each value of the body."""

    size: Size
    places: dict[Value, int | None]


@dataclass(frozen=True, eq=False)
class Loop:
    """A scan's body, planned.

    Along ``shared``, one of ``axes``, products share their matrices; ``panels`` are constants that
    are laid in panels before the loop.
    """

    body: Block
    passes: tuple[Pass, ...]
    scratch: tuple[Value, ...]
    panels: tuple[Value, ...]
    inner: tuple[TensorType, ...]
    axes: tuple[Axis, ...]
    shared: Axis | None

    @property
    def in_place(self) -> dict[Value, Value]:
        """Results that are written where a carry lies."""
        return {r: carry for this in self.passes for r, carry in this.in_place.items()}


def scan_scratch(op: Op) -> list[TensorType]:
    """Tensors for what the body stores within a step."""
    loop = planned_loop(op)
    laid = (panel_type(v.type) for v in loop.panels)
    return [*(v.type for v in loop.scratch), *laid, *loop.inner]


@lru_cache(maxsize=64)
def planned_loop(op: Op) -> Loop:
    """The plan of a scan's body; BackendError where it has none."""
    if op.body is None:
        raise BackendError(f"{op.loc}: a scan lacks its body")
    carries = op.defn.attributes()["carries"]
    body = with_copies(op.body)
    groups = plan_block(body)
    axes = _independent(body, carries)

    def alike(x: Value, y: Value) -> bool:
        return all(axis.places[x] == axis.places[y] for axis in axes)

    passes = tuple(plan_passes(body, groups, carries, alike))
    outputs = set(body.results[carries:])
    elsewhere = outputs.union(*(this.in_place for this in passes))
    scratch = tuple(r for this in passes for r in this.stored if r not in elsewhere)
    inner = tuple(t for g in groups if g.root.name == "scan" for t in scan_scratch(g.root))
    anchors = [g.anchor for g in groups if g.anchor is not None]
    shared = next((a for a in axes if any(shares_matrix(o, a.places) for o in anchors)), None)
    first = carries + op.defn.attributes()["sequences"]
    panels = tuple(v for v in body.params[first:] if _is_matrix(v, groups, axes))
    return Loop(body, passes, scratch, panels, inner, axes, shared)


def _is_matrix(value: Value, groups: Sequence[Group], axes: Sequence[Axis]) -> bool:
    """Whether a constant is read as the matrix of products alone, and whole."""
    readers = [op for group in groups for op in group.ops if value in op.operands]
    last = (value.type.rank - 2, value.type.rank - 1)
    kept = all(axis.places[value] not in last for axis in axes)
    products = all(op.name == "matmul" and op.values[0] is not value for op in readers)
    return bool(readers) and products and kept and in_panels(value)


def _independent(body: Block, carries: int) -> tuple[Axis, ...]:
    axes = []
    rank = body.params[0].type.rank if carries else 0
    for axis in range(max(rank - 1, 0)):
        size = body.params[0].type.shape[axis]
        found = None if size == 1 else follow_axis(body, carries, axis)
        if found is not None:
            axes.append(Axis(size, found))
    return tuple(axes)
