"""Softmax attention for selected queries only: the others cost nothing and give 0.

B batch, H query heads, G key heads, S queries, N selected queries, T keys, K key size,
V value size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.dims import Size
from seqmix_ir.errors import IRError
from seqmix_ir.ops.attention import Attention
from seqmix_ir.ops.constants import constant, size_value
from seqmix_ir.ops.index import GatherElements, ScatterElements
from seqmix_ir.ops.logic import Less, Where
from seqmix_ir.ops.rules import expect_dtype, expect_rank, expect_shape
from seqmix_ir.ops.segments import Pad, Slice
from seqmix_ir.ops.shape import Expand, Unsqueeze
from seqmix_ir.types import TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["OPS", "SelectedAttention"]


@op
class SelectedAttention(OpDef):
    """:class:`Attention` of the queries whose index is in ``selected [B,N]`` (i64, -1: none).

    All other operands, the attributes and the result ``[B,H,S,V]`` are those of ``attention``; a
    query that is not selected gives 0. A row of ``selected`` names no query twice, in any order.
    Selection costs N * T instead of S * T products (Zoology, section 5: sparse hybrids).
    """

    name = "selected_attention"
    operands = ("q", "k", "v", "query_positions", "key_positions", "selected", "bias?", "sinks?")
    results = ("y",)
    scale: float = 0.0
    causal: bool = True
    window: int = 0

    def infer(
        self,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        query_positions: TensorType,
        key_positions: TensorType,
        selected: TensorType,
        bias: TensorType | None,
        sinks: TensorType | None,
    ) -> tuple[TensorType, ...]:
        found = self._all().infer(q, k, v, query_positions, key_positions, bias, sinks)
        expect_rank("selected", selected, 2, "[B, N]")
        expect_dtype("selected", selected, ("i64",))
        expect_shape("selected", selected, (q.shape[0], selected.shape[1]), f"'q' is {q}")
        return found

    def evaluate(
        self,
        run: Run,
        q: Array,
        k: Array,
        v: Array,
        query_positions: Array,
        key_positions: Array,
        selected: Array,
        bias: Array | None,
        sinks: Array | None,
    ) -> tuple[Array, ...]:
        S = q.shape[2]
        if (selected < -1).any() or (selected >= S).any():
            raise IRError(f"'selected' holds {selected.min()} to {selected.max()}, but S is {S}")
        for row in selected:
            if len(set(row[row >= 0])) < (row >= 0).sum():
                raise IRError(f"'selected' names a query twice in {row.tolist()}")
        chosen = (selected[:, :, None] == np.arange(S)).any(1)
        positions = np.where(chosen, query_positions, -1)
        return self._all().evaluate(run, q, k, v, positions, key_positions, bias, sinks)

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"gathered": self._gathered, "masked": self._masked}

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        q, k, v = (rng.normal(size=s) for s in ((2, 4, 5, 3), (2, 2, 7, 3), (2, 2, 7, 6)))
        query = np.array([[2, 3, 4, 5, 6], [-1, 0, 1, 2, 3]])
        key = np.array([[0, 1, 2, 3, 4, 5, 6], [-1, -1, -1, 0, 1, 2, 3]])
        selected = np.array([[4, 0, -1], [0, 3, 1]])
        bias, sinks = rng.normal(size=(2, 1, 5, 7)), rng.normal(size=4)
        return [
            Example(cls(), (q, k, v, query, key, selected, None, None)),
            Example(cls(0.3, True, 3), (q, k, v, query, key, selected, bias, sinks)),
        ]

    def _all(self) -> Attention:
        return Attention(self.scale, self.causal, self.window)

    def _masked(self, b: Builder, op: Op) -> tuple[Value, ...]:
        """Attention of all queries, where those that are not selected stand as padding."""
        q, k, v, query, key, selected, bias, sinks = op.operands
        if q is None or query is None or selected is None:
            raise IRError(f"{op.loc}: 'selected_attention' lacks one of its first six operands")
        S = q.type.shape[2]
        none = b(Expand((q.type.shape[0], S)), constant(b, -1, "i64"))
        kept = _put(b, none, selected, b(GatherElements(1), query, _clipped(b, selected)), 1)
        return (b(self._all(), q, k, v, kept, key, bias, sinks),)

    def _gathered(self, b: Builder, op: Op) -> tuple[Value, ...]:
        """Gather the queries, attend with them, scatter what they read."""
        q, k, v, query, key, selected, bias, sinks = op.operands
        if q is None or v is None or query is None or selected is None:
            raise IRError(f"{op.loc}: 'selected_attention' lacks one of its first six operands")
        index = _clipped(b, selected)
        positions = b(GatherElements(1), query, index)
        none = constant(b, -1, "i64")
        positions = b(Where(), b(Less(), selected, constant(b, 0, "i64")), none, positions)
        rows = _rows(b, q, index)
        if bias is not None and bias.type.rank > 1 and bias.type.shape[-2] != 1:
            bias = _rows(b, _with_batch(b, bias, q.type.shape[0]), index)
        y = b(self._all(), rows, k, v, positions, key, bias, sinks)
        B, H, S, _ = q.type.shape
        nothing = b(Expand((B, H, S, y.type.shape[3])), constant(b, 0.0, y.type.dtype))
        return (_put(b, nothing, selected, y, 2),)


def _clipped(b: Builder, selected: Value) -> Value:
    """The index with 0 for none, so that it may be gathered by."""
    zero = constant(b, 0, "i64")
    return b(Where(), b(Less(), selected, zero), zero, selected)


def _rows(b: Builder, x: Value, index: Value) -> Value:
    """The rows ``index [B, N]`` of ``x [B, M, S, L]`` for each of M: ``[B, M, N, L]``."""
    B, M, _, L = x.type.shape
    places = b(Expand((B, M, index.type.shape[1], L)), b(Unsqueeze((1, 3)), index))
    return b(GatherElements(2), x, places)


def _with_batch(b: Builder, bias: Value, B: Size) -> Value:
    """``bias`` with four axes, the first of size B."""
    shape = (1,) * (4 - bias.type.rank) + bias.type.shape
    if len(shape) > bias.type.rank:
        bias = b(Unsqueeze(tuple(range(4 - bias.type.rank))), bias)
    return b(Expand((B, *shape[1:])), bias)


def _put(b: Builder, x: Value, selected: Value, rows: Value, axis: int) -> Value:
    """``x`` with ``rows`` at the selected places of ``axis``.

    A row for none goes to a place behind the last one, which is cut off again.
    """
    S = x.type.shape[axis]
    places = b(
        Where(), b(Less(), selected, constant(b, 0, "i64")), size_value(b, S, "i64"), selected
    )
    if axis == 2:
        places = b(Expand(rows.type.shape), b(Unsqueeze((1, 3)), places))
    longer = b(ScatterElements(axis), b(Pad(axis, 0, 1), x), places, rows)
    return b(Slice(axis, 0, S), longer)


OPS: tuple[type[OpDef], ...] = (SelectedAttention,)
