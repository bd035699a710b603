"""Reverse mode through a run of ops: cotangents of values from cotangents of later values."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from seqmix_ir import ops
from seqmix_ir.adjoint.table import RULES, zeros
from seqmix_ir.builder import Builder
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Op, Value
from seqmix_ir.ops.rules import normal_axis
from seqmix_ir.types import FLOATS

__all__ = ["Cotangents", "dependents", "pull_back", "replay"]


def dependents(run: Iterable[Op], sources: Collection[Value]) -> set[Value]:
    """The float values that float values among ``sources`` flow into, with those themselves."""
    active = {v for v in sources if v.type.dtype in FLOATS}
    for op in run:
        if not active.isdisjoint(v for v in op.operands if v is not None):
            active.update(r for r in op.results if r.type.dtype in FLOATS)
    return active


def replay(b: Builder, run: Iterable[Op], env: dict[Value, Value]) -> list[Op]:
    """Emit the ops on the values that ``env`` has for theirs, and enter the results there.

    Returns the ops as they stand now; an op whose results ``env`` has already is left out.
    """
    made: list[Op] = []
    for op in run:
        if all(r in env for r in op.results):
            continue
        b.loc = op.loc
        operands = [None if v is None else env[v] for v in op.operands]
        hints = [r.hint for r in op.results]
        results = b.emit(op.defn, *operands, body=op.body, hints=hints)
        env.update(zip(op.results, results, strict=True))
        made.append(b.ops[-1])
    return made


class Cotangents:
    """What has flowed to each value so far; pieces of one value are put together at last."""

    def __init__(self, b: Builder, given: Mapping[Value, Value]) -> None:
        """``given``: value to cotangent, where the flow starts."""
        self._b = b
        self._parts: dict[Value, list[Value]] = {v: [g] for v, g in given.items()}
        self._pieces: dict[Value, list[_Piece]] = {}

    def add(self, value: Value, cotangent: Value) -> None:
        """One more user of ``value`` was differentiated."""
        if cotangent.type != value.type:
            raise IRError(f"a cotangent of {value.type} is {cotangent.type}; its rule is wrong")
        self._parts.setdefault(value, []).append(cotangent)

    def add_piece(self, value: Value, axis: int, start: int, stop: int, cotangent: Value) -> None:
        """A user that took a slice of ``value``."""
        piece = _Piece(axis, start, stop, cotangent)
        self._pieces.setdefault(value, []).append(piece)

    def total(self, value: Value) -> Value | None:
        """The sum of everything that flowed to ``value``; None where nothing did."""
        parts = self._parts.pop(value, [])
        pieces = self._pieces.pop(value, [])
        if pieces:
            parts += _assembled(self._b, value, pieces)
        if not parts:
            return None
        total = parts[0]
        for part in parts[1:]:
            total = self._b(ops.Add(), total, part)
        self._parts[value] = [total]
        return total


@dataclass(frozen=True)
class _Piece:
    axis: int
    start: int
    stop: int
    cotangent: Value


def _assembled(b: Builder, value: Value, pieces: Sequence[_Piece]) -> list[Value]:
    """Whole cotangents: one concat where the pieces lie side by side, a pad for each otherwise."""
    ordered = sorted(pieces, key=lambda p: (p.axis, p.start))
    pairs = itertools.pairwise(ordered)
    axis = ordered[0].axis
    apart = all(p.axis == q.axis and p.stop <= q.start for p, q in pairs)
    length = value.type.shape[axis]
    if not apart or not isinstance(length, int):
        return [_padded(b, value, piece) for piece in ordered]
    parts: list[Value] = []
    place = 0
    for piece in (*ordered, _Piece(axis, length, length, value)):
        if piece.start > place:
            shape = value.type.shape
            gap = (*shape[:axis], piece.start - place, *shape[axis + 1 :])
            parts.append(zeros(b, value.type.with_shape(gap)))
        if piece.cotangent is not value:
            parts.append(piece.cotangent)
        place = piece.stop
    return [b(ops.Concat(axis), *parts) if len(parts) > 1 else parts[0]]


def _padded(b: Builder, value: Value, piece: _Piece) -> Value:
    behind = value.type.shape[piece.axis] - piece.stop
    return b(ops.Pad(piece.axis, piece.start, behind), piece.cotangent)


def pull_back(b: Builder, run: Sequence[Op], flow: Cotangents, active: Collection[Value]) -> None:
    """Differentiate the ops from the last to the first; ``b`` may read all their values.

    Cotangents of values that are not ``active`` are not followed. IRError for an op on the way
    that has no rule, with its location.
    """
    for op in reversed(run):
        if active and not any(r in active for r in op.results):
            continue
        grads = [flow.total(r) if r in active else None for r in op.results]
        if all(g is None for g in grads):
            continue
        b.loc = op.loc.inside("adjoint")
        if not _cut(b, op, grads[0], flow):
            _by_rule(b, op, grads, flow, active)


def _cut(b: Builder, op: Op, grad: Value | None, flow: Cotangents) -> bool:
    """A slice by numbers is a piece of its operand's cotangent."""
    defn = op.defn
    if not isinstance(defn, ops.Slice) or defn.step != 1 or grad is None:
        return False
    if not (isinstance(defn.start, int) and isinstance(defn.stop, int)):
        return False
    (x,) = op.values
    flow.add_piece(x, normal_axis(defn.axis, x.type.rank), defn.start, defn.stop, grad)
    return True


def _by_rule(
    b: Builder,
    op: Op,
    grads: Sequence[Value | None],
    flow: Cotangents,
    active: Collection[Value],
) -> None:
    rule = RULES.get(type(op.defn))
    if rule is None:
        raise IRError(
            f"{op.loc}: '{op.name}' has no gradient: neither a rule nor a decomposition into "
            "ops that have one; keep it off the way from an input that needs a gradient"
        )
    found = rule(b, op, *grads)
    for operand, cotangent in zip(op.operands, found, strict=True):
        if operand is not None and cotangent is not None and operand in active:
            flow.add(operand, cotangent)
