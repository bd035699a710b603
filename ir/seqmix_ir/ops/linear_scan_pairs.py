"""A linear scan in simpler ops: neighbours are combined in groups, again and again.

Two steps ``h -> a*h + b`` make one step ``h -> (a2*a1)*h + (a2*b1 + b2)``, and so do eight. So a
scan of n steps is a scan of n/8 groups, which gives every eighth h, and seven more steps from
each of those, for all groups at once, give the others: about 3n combinations in all, at a depth
of 14 per factor of 8, and nothing is ever subtracted. B batch, S sequence, D channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seqmix_ir.builder import trace_block
from seqmix_ir.defn import OpDef
from seqmix_ir.dims import ceildiv
from seqmix_ir.errors import IRError
from seqmix_ir.ops.arithmetic import Add, Maximum, Mul
from seqmix_ir.ops.precision import narrow, widen
from seqmix_ir.ops.scan import Scan
from seqmix_ir.ops.segments import Concat, Pad, Slice
from seqmix_ir.ops.shape import Reshape, Squeeze, Unsqueeze

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["CHUNK", "SEMIRINGS", "Semiring", "decompose_linear_scan"]

CHUNK = 64
"""Steps that are combined into one before anything goes step by step."""
GROUP = 8
"""Neighbours that are combined at once: larger groups copy less, smaller ones are less deep."""


@dataclass(frozen=True)
class Semiring:
    """Its two operations, and the step that changes nothing: neutral ``a``, neutral ``b``."""

    plus: OpDef
    times: OpDef
    one: float
    zero: float

    def step(self, b: Builder, a: Value, state: Value, added: Value) -> Value:
        """``a * state + added``."""
        return b(self.plus, b(self.times, a, state), added)


SEMIRINGS: Mapping[str, Semiring] = {
    "plus_times": Semiring(Add(), Mul(), 1.0, 0.0),
    "max_plus": Semiring(Maximum(), Add(), 0.0, float("-inf")),
}


def decompose_linear_scan(b: Builder, op: Op, semiring: str, levels: int) -> tuple[Value, ...]:
    """The ops that a ``linear_scan`` stands for; every level divides the number of steps by 64."""
    a, added, initial = op.operands
    if a is None or added is None or initial is None:
        raise IRError(f"{op.loc}: 'linear_scan' lacks 'a', 'b' or 'initial'")
    ring, state = SEMIRINGS[semiring], widen(b, initial)
    h = _chunked(b, ring, widen(b, a), widen(b, added), state, levels)
    S = a.type.shape[1]
    last = b(Squeeze((1,)), b(Slice(1, S - 1, S), h))
    return narrow(b, h, a.type.dtype), narrow(b, last, initial.type.dtype)


def _chunked(
    b: Builder, ring: Semiring, a: Value, added: Value, state: Value, levels: int
) -> Value:
    """All h ``[B, S, D]``."""
    S = a.type.shape[1]
    if S == 1 or not levels:
        return _recurrent(b, ring, a, added, state)
    chunk = CHUNK
    while isinstance(S, int) and chunk // 2 >= S:
        chunk //= 2
    missing = ceildiv(S, chunk) * chunk - S
    if missing != 0:
        a = b(Pad(1, 0, missing, ring.one), a)
        added = b(Pad(1, 0, missing, ring.zero), added)
    h = _grouped(b, ring, a, added, state, chunk, levels)
    return h if missing == 0 else b(Slice(1, 0, S), h)


def _grouped(
    b: Builder, ring: Semiring, a: Value, added: Value, state: Value, chunk: int, levels: int
) -> Value:
    """All h of a sequence whose length divides by ``chunk``, a power of 2."""
    if chunk == 1:
        return _chunked(b, ring, a, added, state, levels - 1)
    group = min(GROUP, chunk)
    steps = list(zip(_members(b, a, group), _members(b, added, group), strict=True))
    (all_a, all_added), *rest = steps
    for one_a, one_added in rest:
        all_added = ring.step(b, one_a, all_added, one_added)
        all_a = b(ring.times, one_a, all_a)
    ends = _grouped(b, ring, all_a, all_added, state, chunk // group, levels)
    count = ends.type.shape[1]
    h = b(Unsqueeze((1,)), state)
    if count != 1:
        h = b(Concat(1), h, b(Slice(1, 0, count - 1), ends))
    members = []
    for one_a, one_added in steps[:-1]:
        h = ring.step(b, one_a, h, one_added)
        members.append(h)
    return b(Reshape(a.type.shape), b(Concat(2), *members, ends))


def _members(b: Builder, x: Value, group: int) -> list[Value]:
    """The first, second, ... of each ``group`` of neighbours, ``[B, S/group, D]`` each."""
    B, S, D = x.type.shape
    groups = b(Reshape((B, ceildiv(S, group), group * D)), x)
    return [b(Slice(2, i * D, (i + 1) * D), groups) for i in range(group)]


def _recurrent(b: Builder, ring: Semiring, a: Value, added: Value, state: Value) -> Value:
    """Step by step; a single step needs no loop."""
    B, S, D = a.type.shape
    if S == 1:
        return ring.step(b, a, b(Unsqueeze((1,)), state), added)

    def body(inner: Builder, h: Value, a: Value, added: Value) -> tuple[Value, ...]:
        new = ring.step(inner, a, h, added)
        return new, new

    row = a.type.with_shape((B, D))
    block = trace_block([row] * 3, body, "h a b")
    return b.emit(Scan(1, 2), state, a, added, body=block)[1]
