"""Bytes that the kernels of a graph move between matrix products.

Every op is one kernel, which reads each operand once and writes each result once; so does a
``fused`` op. Counted is what stands between products: ops of single elements, norms, reductions,
copies, tables. Not counted are

- products and mixers (:data:`ANCHORS`): what they read must be read and what they write must be
  written however the ops between them are grouped;
- copies that are a result of the graph: a state must be written;
- views (reshape, transpose, expand, slice ..), weights and scalars, which move nothing by
  themselves: who reads them pays.

Of a tensor that is picked from, by an index or a slice, the elements that are read count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from seqmix_ir.dims import Size, evaluate_size
from seqmix_ir.graph import Module, Op, Value
from seqmix_ir.passes.group import fused_lead
from seqmix_ir.passes.group_index import At, axes_of
from seqmix_ir.passes.group_trace import trace
from seqmix_ir.types import item_bytes

__all__ = ["ANCHORS", "Traffic", "traffic"]

ANCHORS = frozenset(
    {
        "attention", "causal_conv1d", "conv1d", "cross_entropy", "irfft", "linear",
        "linear_attention", "linear_scan", "long_conv", "matmul", "rfft", "scan",
        "selected_attention",
    }
)  # fmt: skip
"""Ops whose operands and results are in memory whatever is fused."""

_FREE = frozenset(
    {
        "constant", "expand", "iota", "reshape", "size", "slice", "squeeze", "transpose",
        "unsqueeze", "weight",
    }
)  # fmt: skip
_COPIES = frozenset({"concat", "pad"})


@dataclass(frozen=True)
class Traffic:
    """Bytes read and written, and kernels launched."""

    read: int = 0
    written: int = 0
    kernels: int = 0

    @property
    def total(self) -> int:
        """Bytes both ways."""
        return self.read + self.written

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.read + other.read, self.written + other.written, self.kernels + other.kernels
        )


def traffic(
    module: Module,
    sizes: Mapping[str, int],
    anchors: Iterable[str] = ANCHORS,
    *,
    eager: bool = False,
) -> Traffic:
    """What the ops of a module's graphs move, without ``anchors``; bodies are not looked into.

    Ops of a plugin count as mixers. Sizes bind the names that the graphs mention. With ``eager``
    rotations count as what torch runs for them, for which it has no function: two products, two
    products with a sum, and a concatenation.
    """
    known = frozenset(anchors)
    total = Traffic()
    for graph in module.graphs:
        results = set(graph.block.results)
        for op in graph.block.ops:
            state = op.name in _COPIES and results.issuperset(op.results)
            if state or op.name in _FREE or op.name in known or _is_foreign(op):
                continue
            if eager and op.name == "rotary":
                total = total + _eager_rotary(op, sizes)
                continue
            written = sum(_bytes(r, sizes) for r in op.results)
            total = total + Traffic(_read(op, sizes), written, 1)
    return total


def _eager_rotary(op: Op, sizes: Mapping[str, int]) -> Traffic:
    """Each half: product with a table, then another added to it; then both in one tensor."""
    x, cos, _ = op.values
    table, whole = _bytes(cos, sizes), _bytes(x, sizes)
    heads = _number(x.type.shape[1], sizes)
    half = _count(cos, sizes) * heads * item_bytes(x.type.dtype)
    read = 2 * ((half + table) + (2 * half + table)) + whole
    return Traffic(read, 4 * half + whole, 5)


def _is_foreign(op: Op) -> bool:
    """Whether the op is no core op, nor a group."""
    return not type(op.defn).__module__.startswith("seqmix_ir.")


def _read(op: Op, sizes: Mapping[str, int]) -> int:
    if op.name == "fused":
        return _read_by_group(op, sizes)
    present = [v for v in op.operands if v is not None]
    if op.name in ("gather", "gather_elements"):
        data, indices = present
        picked = _count(op.results[0], sizes) * item_bytes(data.type.dtype)
        return min(picked, _bytes(data, sizes)) + _bytes(indices, sizes)
    return sum(_bytes(v, sizes) for v in dict.fromkeys(present))


def _read_by_group(op: Op, sizes: Mapping[str, int]) -> int:
    body = op.body
    if body is None:
        return 0
    makers = {r: o for o in body.ops for r in o.results}
    leaves = trace(makers, body.results, fused_lead(op), check=False).leaves
    total = 0
    for value, places in leaves.items():
        elements = sum(_elements(at, sizes) for at in dict.fromkeys(places))
        total += min(elements, _count(value, sizes)) * item_bytes(value.type.dtype)
    return total


def _elements(at: At, sizes: Mapping[str, int]) -> int:
    return math.prod(_number(axis.size, sizes) for axis in axes_of(at))


def _bytes(value: Value, sizes: Mapping[str, int]) -> int:
    return _count(value, sizes) * item_bytes(value.type.dtype)


def _count(value: Value, sizes: Mapping[str, int]) -> int:
    return math.prod(_number(size, sizes) for size in value.type.shape)


def _number(size: Size, sizes: Mapping[str, int]) -> int:
    return size if isinstance(size, int) else evaluate_size(size, sizes)
