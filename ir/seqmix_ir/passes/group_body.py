"""The body of a group, and its name."""

from __future__ import annotations

from collections.abc import Sequence

from seqmix_ir.builder import Builder
from seqmix_ir.graph import Block, Op, Value

__all__ = ["fused_body", "label_of"]


def fused_body(
    inside: dict[Value, Op], outputs: Sequence[Value], params: dict[Value, Value]
) -> Block:
    """The ops that the outputs need, on parameters in place of what is read."""
    env: dict[Value, Value] = dict(params)
    b = Builder()
    waiting = list(reversed(outputs))
    while waiting:
        value = waiting[-1]
        if value in env:
            waiting.pop()
            continue
        this = inside[value]
        missing = [v for v in this.operands if v is not None and v not in env]
        if missing:
            waiting += reversed(missing)
            continue
        waiting.pop()
        results = tuple(Value(r.type) for r in this.results)
        operands = tuple(None if v is None else env[v] for v in this.operands)
        b.append(Op(this.defn, operands, results, None, this.loc))
        env.update(zip(this.results, results, strict=True))
    return b.block(tuple(params.values()), tuple(env[v] for v in outputs))


def label_of(ops: Sequence[Op]) -> str:
    """A name made of the ops that say most."""
    names = [o.name for o in ops if o.name not in ("cast", "clip_gradient")] or ["cast"]
    kept = list(dict.fromkeys(names))
    return "_".join(kept[:5]) + ("_etc" if len(kept) > 5 else "")
