"""From one ``scan`` to the two graphs of its training step; see the package for what they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from seqmix_ir.adjoint.backward_step import dear_values
from seqmix_ir.adjoint.expand import expanded
from seqmix_ir.adjoint.hoist import moved
from seqmix_ir.adjoint.loop_back import LoopBack
from seqmix_ir.adjoint.pull_back import Cotangents, dependents, pull_back, replay
from seqmix_ir.adjoint.split import Split
from seqmix_ir.adjoint.table import zeros
from seqmix_ir.adjoint.tidy import tidied
from seqmix_ir.builder import Builder
from seqmix_ir.dims import symbols_of
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, DimInfo, Graph, Module, Op, Value
from seqmix_ir.ops import Scan
from seqmix_ir.types import FLOATS, TensorType

__all__ = ["Adjoint", "adjoint"]


@dataclass(frozen=True)
class Adjoint:
    """The training step of one scan, as graphs ``forward`` and ``backward`` of ``module``.

    ``wrt`` numbers the operands whose cotangents ``backward`` gives, ``cotangents`` the results
    whose cotangents it takes; ``saved`` are the types of what goes from one to the other.
    """

    module: Module
    wrt: tuple[int, ...]
    cotangents: tuple[int, ...]
    saved: tuple[TensorType, ...]

    @property
    def forward(self) -> Graph:
        """Operands in; results and saved values out."""
        return self.module.graph("forward")

    @property
    def backward(self) -> Graph:
        """Operands, saved values and cotangents of results in; cotangents of operands out."""
        return self.module.graph("backward")


def adjoint(op: Op, wrt: Sequence[int] | None = None, dims: Sequence[DimInfo] = ()) -> Adjoint:
    """Derive the training step of a ``scan``; ``wrt`` defaults to all float operands.

    ``dims`` bounds the sizes that the operands name; those it does not name are at least 1.
    IRError when the op is no scan, when ``wrt`` names no float operand, or when an op of the body
    on the way of a gradient has none: the message has the op and its location.
    """
    if not isinstance(op.defn, Scan) or op.body is None:
        raise IRError(f"{op.loc}: adjoint() takes a 'scan', not '{op.name}'")
    chosen = _chosen(op, wrt)
    params = [Value(v.type, f"x{i}") for i, v in enumerate(op.values)]
    forward, loop = _forward(op, op.defn, params, chosen)
    seeds = tuple(i for i, r in enumerate(op.results) if r.type.dtype in FLOATS)
    return _Derivation(forward, loop, chosen, seeds, _bounds(op, dims)).run()


def _bounds(op: Op, dims: Sequence[DimInfo]) -> tuple[DimInfo, ...]:
    known = {info.name: info for info in dims}
    named = sorted({n for v in op.values for s in v.type.shape for n in symbols_of(s)})
    return tuple(known.get(name, DimInfo(name)) for name in named)


def _chosen(op: Op, wrt: Sequence[int] | None) -> tuple[int, ...]:
    floats = tuple(i for i, v in enumerate(op.values) if v.type.dtype in FLOATS)
    if wrt is None:
        return floats
    if odd := [i for i in wrt if i not in floats]:
        raise IRError(
            f"{op.loc}: operand {odd[0]} of this scan has no gradient; float operands are {floats}"
        )
    return tuple(wrt)


def _forward(
    op: Op, scan: Scan, params: Sequence[Value], wrt: Sequence[int]
) -> tuple[Block, Op | None]:
    """The scan over axis 0 with a body as small as can be, and its loop where one is left."""
    body = op.body
    if body is None:
        raise IRError(f"{op.loc}: this scan has no body")
    b = Builder(op.loc)
    sources = {body.params[i] for i in wrt}
    sources |= {p for p in body.params[: scan.carries] if p.type.dtype in FLOATS}
    body = expanded(body, sources)
    first, second = scan.carries, scan.carries + scan.sequences
    operands = [
        moved(b, p, scan.axis, 0) if first <= i < second else p for i, p in enumerate(params)
    ]
    split = Split(b, scan, body, operands)
    looped = split.emit(body.results[first:])
    outputs = [moved(b, split.of(r), 0, scan.axis) for r in body.results[first:]]
    return b.block(params, (*looped.results[:first], *outputs)), looped.op


class _Derivation:
    """The backward graph of a block that has one loop, and what the forward one must save."""

    def __init__(
        self,
        block: Block,
        loop: Op | None,
        wrt: tuple[int, ...],
        seeds: tuple[int, ...],
        dims: tuple[DimInfo, ...],
    ) -> None:
        self._block = block
        self._loop = loop
        self._wrt = wrt
        self._seeds = seeds
        self._dims = dims

    def run(self) -> Adjoint:
        """Twice: what the first one computes again at too high a price is saved in the second."""
        back = None if self._loop is None else LoopBack(self._block, self._loop, self._wrt)
        trial, again, _ = self._backward(back, ())
        dear = dear_values(trial, again)
        block, _, saved = self._backward(back, dear)
        used = {v for op in block.ops for v in op.operands} | set(block.results)
        names = [v for v in saved if saved[v] in used]
        params = [p for p in block.params if p in used or p not in set(saved.values())]
        kept = [saved[v] for v in names]
        for place, value in enumerate(kept):
            params[params.index(value)] = named = Value(value.type, f"s{place}")
            block = _renamed(block, value, named)
        forward = self._saving(back, names)
        return self._adjoint(forward, Block(tuple(params), block.ops, block.results), kept)

    def _adjoint(self, forward: Block, backward: Block, kept: Sequence[Value]) -> Adjoint:
        saved = [f"s{i}" for i in range(len(kept))]
        results = len(forward.results) - len(kept)
        outputs = (*(f"y{i}" for i in range(results)), *saved)
        grads = tuple(f"dx{i}" for i in self._wrt)
        graphs = (
            Graph("forward", forward, outputs, self._dims),
            Graph("backward", backward, grads, self._dims),
        )
        types = tuple(v.type for v in kept)
        return Adjoint(Module("adjoint", graphs), self._wrt, self._seeds, types)

    def _backward(
        self, back: LoopBack | None, dear: Sequence[Value]
    ) -> tuple[Block, dict[Value, Value], dict[Value, Value]]:
        """The block; what of it the forward block has too; and the parameter of what is saved.

        Saved values are named by those of the forward block, or of the body of its loop.
        """
        b = Builder()
        env = {p: Value(p.type, p.hint) for p in self._block.params}
        params = list(env.values())
        saved = {**(back.saved() if back else {}), **{v: Value(v.type, v.hint) for v in dear}}
        env.update({v: saved[v] for v in dear})
        env.update(back.results(saved) if back else {})
        replay(b, self._block.ops, env)
        given = [Value(self._block.results[i].type, f"dy{i}") for i in self._seeds]
        flow = Cotangents(b, {})
        for i, cotangent in zip(self._seeds, given, strict=True):
            flow.add(env[self._block.results[i]], cotangent)
        sources = [self._block.params[i] for i in self._wrt]
        active = {env[v] for v in dependents(self._block.ops, sources)}
        run = [_on(op, env) for op in self._block.ops]
        place = len(run) if self._loop is None else self._block.ops.index(self._loop)
        pull_back(b, run[place + 1 :], flow, active)
        if back is not None:
            back.pull(b, run[place], flow, saved)
        pull_back(b, run[:place], flow, active)
        found = [flow.total(env[p]) for p in sources]
        results = [
            zeros(b, p.type) if r is None else r for p, r in zip(sources, found, strict=True)
        ]
        block = tidied(b.block((*params, *saved.values(), *given), results))
        known = {*params, *saved.values()}
        return block, {v: k for k, v in env.items() if v not in known}, saved

    def _saving(self, back: LoopBack | None, names: Sequence[Value]) -> Block:
        """The forward block with what is saved behind its results."""
        loop, values = (self._loop, {}) if back is None else back.saving(names)
        ops = tuple(loop if loop and op is self._loop else op for op in self._block.ops)
        results = (*self._block.results, *(values.get(v, v) for v in names))
        return tidied(Block(self._block.params, ops, results))


def _on(op: Op, env: dict[Value, Value]) -> Op:
    operands = tuple(None if v is None else env[v] for v in op.operands)
    return dataclasses.replace(op, operands=operands, results=tuple(env[r] for r in op.results))


def _renamed(block: Block, old: Value, new: Value) -> Block:
    """The block with a parameter under another name."""
    ops = tuple(
        dataclasses.replace(op, operands=tuple(new if v is old else v for v in op.operands))
        if old in op.operands
        else op
        for op in block.ops
    )
    return Block(block.params, ops, tuple(new if r is old else r for r in block.results))
