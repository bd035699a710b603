"""A cell as the body of a ``scan`` of the IR: traced once, without data, op by op."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from seqmix.capture.lower import Entry, Lowering, drop_dead
from seqmix.errors import CaptureError
from seqmix.symbols import type_of
from seqmix_ir.builder import Builder
from seqmix_ir.dims import dim
from seqmix_ir.graph import Block, Op, Value
from seqmix_ir.ops import Scan

__all__ = ["TracedCell", "trace_cell"]

Tensors: TypeAlias = tuple[Tensor, ...]

_LARGEST = 400
"""Calls of torch in a cell. Larger ones are loops in a loop, unrolled; deriving takes too long."""


@dataclass(frozen=True)
class TracedCell:
    """A scan whose operands are those of ``seqmix.scan``, then tensors that the cell refers to.

    ``closed_over`` numbers these among the tensors of the cell's identity.
    """

    op: Op
    closed_over: tuple[int, ...]


def trace_cell(
    cell: Callable[..., Any],
    carries: Tensors,
    sequences: Tensors,
    constants: Tensors,
    axis: int,
    reverse: bool,
    known: Sequence[Tensor],
) -> TracedCell:
    """Trace one step; the number of steps stays open.

    ``known`` are the tensors that the cell refers to. CaptureError for a cell that looks at
    values, is random, changes tensors in place, or uses a tensor of unknown origin.
    """
    slices = tuple(s.select(axis, 0) for s in sequences)
    groups = (carries, slices, constants)
    graph = _traced(cell, groups)
    count = len(graph.graph.nodes)
    if count > _LARGEST:
        raise CaptureError(
            f"the cell is {count} calls of torch; those of up to {_LARGEST} are derived"
        )
    flat = [t for group in groups for t in group]
    lowering = _CellLowering(graph, {}, "", Builder())
    lowering.begin(known)
    names = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    params = [Value(type_of(t)) for t in flat]
    out = lowering.run(graph.graph, dict(zip(names, params, strict=True)))
    results = _results(out, len(carries))
    extra = lowering.extra
    block = drop_dead(lowering.b.block((*params, *extra.values()), results))
    types = [p.type for p in params]
    first, second = len(carries), len(carries) + len(sequences)
    T = dim("T")
    for i, s in enumerate(sequences, start=first):
        shape = tuple(s.shape)
        types[i] = types[i].with_shape((*shape[:axis], T, *shape[axis + 1 :]))
    b = Builder()
    values = [Value(t) for t in (*types, *(v.type for v in extra.values()))]
    defn = Scan(first, second - first, axis, reverse)
    b.emit(defn, *values, body=Block(block.params, block.ops, block.results))
    return TracedCell(b.ops[0], tuple(extra))


def _traced(cell: Callable[..., Any], groups: Sequence[Tensors]) -> torch.fx.GraphModule:
    """The cell as a graph of torch's ops, on tensors without data."""
    # Slow to import, and of use here only.
    from torch.fx.experimental.proxy_tensor import make_fx

    counts = [len(group) for group in groups]

    def flat(*tensors: Tensor) -> list[Tensor]:
        given = iter(tensors)
        parts = [tuple(next(given) for _ in range(count)) for count in counts]
        new, outputs = cell(*parts)
        return [*new, *outputs]

    tracer = make_fx(flat, tracing_mode="fake", pre_dispatch=True, _allow_non_fake_inputs=True)
    detached = [t.detach() for group in groups for t in group]
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # To look at a tensor that is no leaf, torch warns of, and does it itself here.
            warnings.simplefilter("ignore")
            graph: torch.fx.GraphModule = tracer(*detached)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise CaptureError(f"the cell cannot be traced: {reason}") from error
    return graph


class _CellLowering(Lowering):
    """Tensors that the cell refers to become parameters of the body."""

    def begin(self, known: Sequence[Tensor]) -> None:
        """``known`` are the tensors that may be found."""
        self.extra: dict[int, Value] = {}
        self._known = {id(t): i for i, t in enumerate(known)}

    def _attribute(self, target: str) -> Entry:
        found: Any = getattr(self.root, target, None)
        if not isinstance(found, Tensor):
            return super()._attribute(target)
        place = self._known.get(id(found))
        if place is None:
            raise CaptureError(
                f"{self.b.loc}: the cell makes or finds a tensor that is neither an argument nor "
                "closed over; give it to seqmix.scan as a constant"
            )
        if place not in self.extra:
            self.extra[place] = Value(type_of(found))
        return self.extra[place]


def _results(out: Sequence[Any], carries: int) -> tuple[Value, ...]:
    for i, value in enumerate(out):
        if not isinstance(value, Value):
            what = f"carry {i}" if i < carries else f"output {i - carries}"
            raise CaptureError(f"{what} of the cell is no tensor of the IR")
    return tuple(out)
