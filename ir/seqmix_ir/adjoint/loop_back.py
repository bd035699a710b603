"""The loop that runs back through a loop: which values it needs saved, and how it is emitted."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from seqmix_ir.adjoint.backward_step import active_carries, back_step, dear_values
from seqmix_ir.adjoint.pull_back import Cotangents, dependents
from seqmix_ir.adjoint.split import Split
from seqmix_ir.adjoint.sums import total
from seqmix_ir.adjoint.table import zeros
from seqmix_ir.builder import Builder, infer_types
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, Op, Value
from seqmix_ir.ops import Add, Scan
from seqmix_ir.types import FLOATS, TensorType

__all__ = ["LoopBack"]


class LoopBack:
    """How to differentiate the one loop of a block; its values are named by those of its body."""

    def __init__(self, block: Block, loop: Op, wrt: Sequence[int]) -> None:
        """``loop`` is a scan over axis 0; ``wrt`` numbers the parameters of the block."""
        if not isinstance(loop.defn, Scan) or loop.body is None:
            raise IRError(f"{loop.loc}: '{loop.name}' is no loop")
        self._loop, self._scan, self._body = loop, loop.defn, loop.body
        reached = dependents(block.ops, [block.params[i] for i in wrt])
        params = zip(self._body.params, loop.values, strict=True)
        sources = {p for p, v in params if v in reached}
        count = self._scan.carries
        self._carries = active_carries(self._body, count, sources)
        self._wanted = [p for p in self._body.params[count:] if p in sources]
        self._places = {p: i for i, p in enumerate(self._body.params)}
        floats = [i for i, r in enumerate(self._outputs) if r.type.dtype in FLOATS]
        trial = back_step(self._scan, self._body, self._carries, floats, self._wanted)
        self._dear = dear_values(trial.body, trial.replayed)

    @property
    def _outputs(self) -> tuple[Value, ...]:
        return self._body.results[self._scan.carries :]

    def saved(self) -> dict[Value, Value]:
        """A parameter for everything that the loop back might read: stacked values of the loop."""
        T = self._loop.values[self._scan.carries].type.shape[0]
        values = (*self._body.params[: self._scan.carries], *self._outputs, *self._dear)
        return {v: Value(_stacked(v.type, T), v.hint) for v in dict.fromkeys(values)}

    def results(self, saved: Mapping[Value, Value]) -> dict[Value, Value]:
        """What stands for the results of the loop where the loop itself does not run."""
        lasts = self._loop.results[: self._scan.carries]
        outputs = zip(self._loop.results[self._scan.carries :], self._outputs, strict=True)
        return {**{v: Value(v.type) for v in lasts}, **{r: saved[v] for r, v in outputs}}

    def saving(self, names: Sequence[Value]) -> tuple[Op, dict[Value, Value]]:
        """The loop with more outputs, and its result for each of ``names`` that it makes."""
        count = self._scan.carries
        known = dict(zip(self._outputs, self._loop.results[count:], strict=True))
        mine = set(self.saved())
        more = [v for v in names if v in mine and v not in known]
        body = dataclasses.replace(self._body, results=(*self._body.results, *more))
        types = infer_types(self._scan, self._loop.types, body)
        new = [Value(t, v.hint) for t, v in zip(types[len(types) - len(more) :], more, strict=True)]
        results = (*self._loop.results, *new)
        loop = dataclasses.replace(self._loop, results=results, body=body)
        return loop, {**known, **dict(zip(more, new, strict=True))}

    def pull(self, b: Builder, op: Op, flow: Cotangents, saved: Mapping[Value, Value]) -> None:
        """Emit the loop back for ``op``, the loop on values of ``b``."""
        count = self._scan.carries
        grads = [flow.total(r) for r in op.results]
        outputs = [i for i, g in enumerate(grads[count:]) if g is not None]
        if not self._carries and not outputs:
            return
        step = back_step(self._scan, self._body, self._carries, outputs, self._wanted, self._dear)
        starts = [grads[i] or zeros(b, op.results[i].type) for i in self._carries]
        second = count + self._scan.sequences
        sequences = [saved[p] for p in self._body.params[:count]]
        sequences += op.values[count:second]
        sequences += [saved[v] for v in self._dear]
        sequences += [g for g in grads[count:] if g is not None]
        rest = [*sequences, *op.values[second:]]
        b.loc = op.loc.inside("adjoint")
        adds = dict(zip(self._wanted, step.body.results[len(starts) :], strict=True))
        summed = {v for p, v in adds.items() if self._is_constant(p)}
        split = self._split(b, step.body, len(sequences), [*starts, *rest], summed)
        inside = [p for p in adds if self._is_constant(p) and split.reads_large(adds[p])]
        if inside:
            body, adds = _accumulating(step.body, len(starts), adds, inside)
            starts += [zeros(b, p.type) for p in inside]
            split = self._split(b, body, len(sequences), [*starts, *rest], summed)
        self._flow_on(b, op, flow, split, adds, inside)

    def _split(
        self,
        b: Builder,
        body: Block,
        sequences: int,
        operands: Sequence[Value],
        summed: Collection[Value],
    ) -> Split:
        constants = len(self._body.params) - self._scan.carries - self._scan.sequences
        back = Scan(len(operands) - sequences - constants, sequences, 0, not self._scan.reverse)
        return Split(b, back, body, operands, summed)

    def _is_constant(self, param: Value) -> bool:
        return self._places[param] >= self._scan.carries + self._scan.sequences

    def _flow_on(
        self,
        b: Builder,
        op: Op,
        flow: Cotangents,
        split: Split,
        adds: Mapping[Value, Value],
        inside: Sequence[Value],
    ) -> None:
        """Emit the loop; the cotangents of its operands go on to what made those."""
        outside = {p: v for p, v in adds.items() if p not in inside}
        slices = {p: v for p, v in outside.items() if not self._is_constant(p)}
        constants = {p: v for p, v in outside.items() if self._is_constant(p)}
        looped = split.emit(slices.values(), constants.values())
        ends = [*(op.values[i] for i in self._carries), *(self._operand(op, p) for p in inside)]
        for operand, cotangent in zip(ends, looped.results, strict=False):
            flow.add(operand, cotangent)
        for param, value in slices.items():
            flow.add(self._operand(op, param), split.of(value))
        for param, value in constants.items():
            flow.add(self._operand(op, param), total(b, split, value))

    def _operand(self, op: Op, param: Value) -> Value:
        return op.values[self._places[param]]


def _accumulating(
    body: Block, count: int, adds: Mapping[Value, Value], inside: Sequence[Value]
) -> tuple[Block, dict[Value, Value]]:
    """The body with a running sum as one more carry for each of ``inside``.

    For gradients that are made in the loop and are too large to be stacked.
    """
    sums = [Value(p.type, f"d{p.hint}") for p in inside]
    b = Builder()
    for op in body.ops:
        b.append(op)
    news = [b(Add(), s, adds[p]) for s, p in zip(sums, inside, strict=True)]
    rest = {p: v for p, v in adds.items() if p not in inside}
    params = (*body.params[:count], *sums, *body.params[count:])
    return b.block(params, (*body.results[:count], *news, *rest.values())), dict(adds)


def _stacked(type: TensorType, T: object) -> TensorType:
    return type.with_shape((T, *type.shape))  # type: ignore[arg-type]
