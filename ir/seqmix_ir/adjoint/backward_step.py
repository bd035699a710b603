"""The step of the loop that runs back: from cotangents of the new carries to those of the old."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from seqmix_ir.adjoint.amounts import elements, is_heavy
from seqmix_ir.adjoint.factors import gather_factors
from seqmix_ir.adjoint.pull_back import Cotangents, dependents, pull_back, replay
from seqmix_ir.adjoint.table import zeros
from seqmix_ir.adjoint.tidy import tidied
from seqmix_ir.builder import Builder
from seqmix_ir.graph import Block, Op, Value
from seqmix_ir.ops import Cast, ClipGradient, Scan, Where
from seqmix_ir.ops.arithmetic import Binary
from seqmix_ir.ops.elementwise import Unary

__all__ = ["BackStep", "active_carries", "back_step", "dear_values"]


@dataclass(frozen=True)
class BackStep:
    """The body of the loop back.

    Parameters: a cotangent per active carry; slices of all old carries, of the sequences, of the
    saved values and of the cotangents of the outputs; the constants. Results: the cotangents of
    the old carries, then for each wanted parameter what this step adds to its cotangent.
    """

    body: Block
    replayed: Mapping[Value, Value]
    """Value of this body that the forward body has too, and which one of it."""


def active_carries(body: Block, count: int, sources: Collection[Value]) -> tuple[int, ...]:
    """The float carries that something flows into from the parameters in ``sources``."""
    found = set(sources)
    while True:
        flows = dependents(body.ops, found)
        fed = {p for p, r in zip(body.params[:count], body.results, strict=False) if r in flows}
        if fed <= found:
            return tuple(i for i, p in enumerate(body.params[:count]) if p in flows)
        found |= fed


def back_step(
    scan: Scan,
    body: Block,
    carries: Sequence[int],
    outputs: Sequence[int],
    wanted: Sequence[Value],
    saved: Sequence[Value] = (),
) -> BackStep:
    """Differentiate one step of ``scan``.

    ``carries`` are the active ones, ``outputs`` those with a cotangent, both by number; ``wanted``
    are parameters that are no carries, ``saved`` values of the body that need not be computed.
    """
    env = {p: Value(p.type, p.hint) for p in body.params}
    params = tuple(env.values())
    env.update({v: Value(v.type, v.hint) for v in saved})
    b = Builder()
    replay(b, body.ops, env)
    run = [_on(op, env) for op in body.ops]
    seeds = [(body.params[i], body.results[i]) for i in carries]
    seeds += [(r, r) for r in (body.results[scan.carries + i] for i in outputs)]
    given = [Value(p.type, f"d{p.hint or 'y'}") for p, _ in seeds]
    flow = _seeded(b, [env[r] for _, r in seeds], given)
    targets = [*(body.params[i] for i in carries), *wanted]
    pull_back(b, run, flow, {env[v] for v in dependents(body.ops, targets)})
    found = [flow.total(env[p]) for p in targets]
    results = [zeros(b, p.type) if r is None else r for p, r in zip(targets, found, strict=True)]
    n, m = len(carries), scan.carries + scan.sequences
    ordered = (*given[:n], *params[:m], *(env[v] for v in saved), *given[n:], *params[m:])
    block = gather_factors(tidied(b.block(ordered, results)), set(given))
    known = set(params) | {env[v] for v in saved}
    return BackStep(tidied(block), {v: k for k, v in env.items() if v not in known})


def _seeded(b: Builder, values: Sequence[Value], given: Sequence[Value]) -> Cotangents:
    """The flow at the end of the step; what is a carry and an output has two cotangents."""
    flow = Cotangents(b, {})
    for value, cotangent in zip(values, given, strict=True):
        flow.add(value, cotangent)
    return flow


def _on(op: Op, env: Mapping[Value, Value]) -> Op:
    operands = tuple(None if v is None else env[v] for v in op.operands)
    return Op(op.defn, operands, tuple(env[r] for r in op.results), op.body, op.loc)


def dear_values(block: Block, replayed: Mapping[Value, Value]) -> list[Value]:
    """What to save, as values of the forward block, of what ``block`` computes again.

    That is what heavy ops make; or in its place what one op of single elements makes of it alone,
    which is of the same size and spares that op too.
    """
    readers: dict[Value, list[Op]] = {}
    for op in block.ops:
        for v in dict.fromkeys(v for v in op.operands if v is not None):
            readers.setdefault(v, []).append(op)
    found: dict[Value, None] = {}
    for op in block.ops:
        if not is_heavy(op) or any(r not in replayed for r in op.results):
            continue
        kept = op.results
        if len(kept) == 1:
            kept = (_pushed(kept[0], readers, replayed, block.results),)
        found.update(dict.fromkeys(replayed[v] for v in kept))
    return list(found)


def _pushed(
    value: Value,
    readers: Mapping[Value, Sequence[Op]],
    replayed: Mapping[Value, Value],
    results: Collection[Value],
) -> Value:
    """The last of the values that ``value`` alone becomes, element by element."""
    while value not in results and len(readers.get(value, ())) == 1:
        (reader,) = readers[value]
        if not isinstance(reader.defn, Unary | Binary | Where | Cast | ClipGradient):
            break
        made = reader.results[0]
        if made not in replayed or elements(made.type.shape) > elements(value.type.shape):
            break
        value = made
    return value
