"""Which weights are stored transposed: those that nothing but a ``linear`` reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from seqmix_ir.graph import Block, Op, Value
from seqmix_ir.ops import Linear, Weight
from seqmix_onnxruntime.kernels import casts_around

__all__ = ["only_turned"]


def only_turned(block: Block) -> frozenset[str]:
    """Keys of the weights that are the weight of every ``linear`` that reads them, and no more."""
    reads = list(_reads(block, {}))
    straight = {key for key, turned in reads if not turned}
    return frozenset(key for key, _ in reads) - straight


def _reads(block: Block, known: Mapping[Value, str]) -> Iterator[tuple[str, bool]]:
    """Every read of a weight, and whether it is one that wants the transpose."""
    keys = dict(known)
    for op in block.ops:
        if isinstance(op.defn, Weight):
            keys[op.results[0]] = op.defn.key
        for i, value in enumerate(op.operands):
            if value in keys and op.body is None:
                yield keys[value], _turns(op, i)
        if op.body is not None:
            inner = zip(op.body.params, op.operands, strict=True)
            yield from _reads(op.body, {p: keys[v] for p, v in inner if v in keys})
    yield from ((keys[v], False) for v in block.results if v in keys)


def _turns(op: Op, operand: int) -> bool:
    return isinstance(op.defn, Linear) and operand == 1 and not casts_around(op)
