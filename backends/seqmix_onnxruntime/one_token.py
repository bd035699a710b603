"""The graph for one token of one sequence: what ``forward`` does there, in few nodes.

Decoding pays for every node, not for what it computes. For one token loops are their bodies, heads
lie side by side whichever way they are turned, and nothing has to be cut or padded. The file with
this graph stands beside the one for all lengths and shares its weights.

B batch, H heads, K key size, V value size, D channels.
"""

from __future__ import annotations

from seqmix_ir.builder import Builder
from seqmix_ir.graph import Graph, Module, Op, Value
from seqmix_ir.ops import Add, Constant, LinearAttention, LinearScan, Maximum, Mul, Reshape
from seqmix_ir.passes import RESHAPE_RULES, TRIVIAL_RULES, canonicalize, specialise, unify_layouts
from seqmix_onnxruntime.carriers import PackedLinearAttention

__all__ = ["SIZES", "one_token"]

SIZES = {"B": 1, "S": 1}
"""One sequence, one new token, by the names that they have in a captured model."""


def one_token(graph: Graph) -> Graph | None:
    """The graph for :data:`SIZES`; None where it has no such sizes, or is not for these."""
    smallest = {info.name: info.min for info in graph.dims}
    if any(smallest.get(name, size + 1) > size for name, size in SIZES.items()):
        return None
    step = specialise(graph, "step", SIZES)
    rules = (*TRIVIAL_RULES, *RESHAPE_RULES, step_linear_scan, pack_linear_attention)
    step = canonicalize(Module("step", (step,)), rules).graphs[0]
    return canonicalize(Module("step", (unify_layouts(step),)), RESHAPE_RULES).graphs[0]


def step_linear_scan(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """One step of a linear scan is two elementwise ops."""
    if not isinstance(op.defn, LinearScan) or op.values[0].type.shape[1] != 1:
        return None
    a, x, initial = op.values
    if initial.type.dtype != a.type.dtype:
        return None
    keep, add = (Add(), Maximum()) if op.defn.semiring == "max_plus" else (Mul(), Add())
    before = b(Reshape(a.type.shape), initial)
    h = b(add, b(keep, a, before), x)
    return h, b(Reshape(initial.type.shape), h)


def pack_linear_attention(b: Builder, op: Op) -> tuple[Value, ...] | None:
    """Heads of one token lie side by side already; a factor of the queries is the op's scale."""
    if not isinstance(op.defn, LinearAttention):
        return None
    q, k, v, log_decay, state = op.operands
    if q is None or k is None or v is None or state is None or q.type.shape[2] != 1:
        return None
    heads = q.type.shape[1]
    if not isinstance(heads, int) or {x.type.dtype for x in op.operands if x is not None} != {
        "f32"
    }:
        return None
    q, scale = _unscaled(b, q)
    packed = [_side_by_side(b, x) for x in (q, k, v)]
    decay = None if log_decay is None else _side_by_side(b, log_decay)
    y, last = b.emit(PackedLinearAttention(heads, scale), *packed, decay, state)
    return b(Reshape(op.results[0].type.shape), y), last


def _unscaled(b: Builder, q: Value) -> tuple[Value, float]:
    """``q`` as a number times something else: that, and the number."""
    product = b.producer(q, Mul)
    if product is None or product.values[0].type != q.type:
        return q, 1.0
    factor = b.producer(product.values[1], Constant)
    number = None if factor is None else factor.defn.attributes()["value"]
    return (product.values[0], number) if isinstance(number, float) else (q, 1.0)


def _side_by_side(b: Builder, x: Value) -> Value:
    """``[B, H, 1, N]`` as ``[B, 1, H * N]``, ``[B, H, 1]`` as ``[B, 1, H]``."""
    B, H, S, *rest = x.type.shape
    width = H
    for size in rest:
        width = width * size
    return b(Reshape((B, S, width)), x)
