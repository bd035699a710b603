"""Write ops that have no rule in simpler ones, as far as gradients need it."""

from __future__ import annotations

from collections.abc import Collection

from seqmix_ir.adjoint.pull_back import dependents
from seqmix_ir.adjoint.table import is_differentiable
from seqmix_ir.builder import Builder
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, Op, Value

__all__ = ["expanded"]

_DEEPEST = 16


def expanded(block: Block, sources: Collection[Value]) -> Block:
    """The block with every op that floats among ``sources`` flow through differentiable.

    Other ops stay as they are. IRError for an op that has no rule and no decomposition into ops
    that have one, with its location and what was tried.
    """
    return _expanded(block, sources, 0)


def _moved(op: Op, env: dict[Value, Value]) -> Op:
    operands = tuple(None if v is None else env.get(v, v) for v in op.operands)
    if operands == op.operands:
        return op
    return Op(op.defn, operands, op.results, op.body, op.loc)


def _needs_none(op: Op, active: Collection[Value]) -> bool:
    """Whether nothing flows back through the op, or a rule says how."""
    return is_differentiable(op.defn) or not any(r in active for r in op.results)


def _written_out(b: Builder, op: Op, depth: int) -> tuple[Value, ...]:
    """Append the first decomposition that leads to ops with rules; its results."""
    reasons = []
    for style, write in op.defn.decompositions().items() if depth < _DEEPEST else ():
        inner = Builder(op.loc.inside(f"{op.name}.{style}"))
        results = write(inner, op)
        params = tuple(dict.fromkeys(v for v in op.operands if v is not None))
        try:
            part = _expanded(Block(params, tuple(inner.ops), results), params, depth + 1)
        except IRError as error:
            reasons.append(f"'{style}': {error}")
            continue
        for made in part.ops:
            b.append(made)
        return part.results
    tried = f" ({'; '.join(reasons)})" if reasons else ""
    raise IRError(
        f"{op.loc}: '{op.name}' has no gradient: it has no rule, and no decomposition into ops "
        f"that have one{tried}; keep it off the way from an input that needs a gradient"
    )


def _expanded(block: Block, sources: Collection[Value], depth: int) -> Block:
    active = dependents(block.ops, sources)
    env: dict[Value, Value] = {}
    b = Builder()
    for op in block.ops:
        moved = _moved(op, env)
        if _needs_none(op, active):
            b.append(moved)
            continue
        env.update(zip(op.results, _written_out(b, moved, depth), strict=True))
    return b.block(block.params, tuple(env.get(r, r) for r in block.results))
