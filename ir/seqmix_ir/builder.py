"""Appends ops to a block and infers their types; an invalid op cannot be built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from seqmix_ir.defn import OpDef
from seqmix_ir.errors import IRError
from seqmix_ir.graph import UNKNOWN, Block, Op, Value
from seqmix_ir.types import Loc, TensorType

__all__ = ["Builder", "infer_types", "trace_block"]


def infer_types(
    defn: OpDef, types: tuple[TensorType | None, ...], body: Block | None = None
) -> tuple[TensorType, ...]:
    """Result types of one application; IRError without location when the operands do not fit."""
    defn.check_count(len(types))
    for name, type in zip(defn.operands, types, strict=False):
        if type is None and not name.startswith("*") and not name.endswith("?"):
            raise IRError(f"operand '{name}' of '{defn.name}' is absent but is not optional")
    if defn.region != (body is not None):
        raise IRError(f"'{defn.name}' {'needs a body' if defn.region else 'takes no body'}")
    return defn.infer(*types, **({"body": body} if body is not None else {}))


@dataclass
class Builder:
    """A block under construction. ``b(defn, x, y)`` emits an op with one result and returns it."""

    loc: Loc = UNKNOWN
    ops: list[Op] = field(default_factory=list)
    _made_by: dict[Value, Op] = field(default_factory=dict)

    def __call__(self, defn: OpDef, *operands: Value | None, hint: str = "") -> Value:
        """Emit an op that has exactly one result, and return that."""
        results = self.emit(defn, *operands, hints=(hint,))
        if len(results) != 1:
            raise IRError(f"{self.loc}: '{defn.name}' has {len(results)} results; use emit()")
        return results[0]

    def emit(
        self,
        defn: OpDef,
        *operands: Value | None,
        body: Block | None = None,
        hints: Sequence[str] = (),
    ) -> tuple[Value, ...]:
        """Emit an op and return all its results; IRError names the location and operand types."""
        types = tuple(None if v is None else v.type for v in operands)
        try:
            inferred = infer_types(defn, types, body)
        except IRError as error:
            got = ", ".join("none" if t is None else str(t) for t in types)
            raise IRError(f"{self.loc}: '{defn.name}' does not accept ({got}): {error}") from error
        named = [*hints, *[""] * (len(inferred) - len(hints))]
        results = tuple(Value(t, h) for t, h in zip(inferred, named, strict=True))
        self.append(Op(defn, operands, results, body, self.loc))
        return results

    def append(self, op: Op) -> None:
        """Take over a finished op."""
        self.ops.append(op)
        self._made_by.update(dict.fromkeys(op.results, op))

    def producer(self, value: Value | None, kind: type[OpDef]) -> Op | None:
        """The op of class ``kind`` that made ``value`` here: how patterns look backwards."""
        op = None if value is None else self._made_by.get(value)
        return op if op is not None and isinstance(op.defn, kind) else None

    def inside(self, step: str) -> Builder:
        """An empty builder whose ops say that ``step`` made them at this location."""
        return Builder(self.loc.inside(step))

    def block(self, params: Sequence[Value], results: Sequence[Value]) -> Block:
        """The finished block."""
        return Block(tuple(params), tuple(self.ops), tuple(results))


def trace_block(
    types: Sequence[TensorType],
    build: Callable[..., Value | tuple[Value, ...]],
    hints: str = "",
    loc: Loc = UNKNOWN,
) -> Block:
    """Run ``build(builder, *params)`` and return the block that it wrote.

    ``hints`` names the parameters, separated by blanks; empty leaves them unnamed.
    """
    names = hints.split() or [""] * len(types)
    params = tuple(Value(t, h) for t, h in zip(types, names, strict=True))
    b = Builder(replace(loc))
    out = build(b, *params)
    return b.block(params, out if isinstance(out, tuple) else (out,))
