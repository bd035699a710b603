"""Several ops on one input as one: projections, and slices that together are all of it.

A decoder multiplies the same vector with the weights of queries, keys, values and gates. One
product with all of them side by side reads the same weights and starts the threads once; a Split
follows. The file holds the joined weights instead of their parts.

B batch, S sequence, K input width, N output width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from seqmix_ir.builder import Builder
from seqmix_ir.graph import Block, Op, Value
from seqmix_ir.ops import Add, Concat, Linear, Slice, Weight
from seqmix_onnxruntime.carriers import JoinedLinear, Split
from seqmix_onnxruntime.kernels import casts_around

__all__ = ["merge_linears", "merge_slices"]


@dataclass(frozen=True)
class _Part:
    """One ``linear`` and the weights that its matrix consists of, in order."""

    op: Op
    keys: tuple[str, ...]

    @property
    def rows(self) -> int:
        """N."""
        rows = self.op.results[0].type.shape[-1]
        return rows if isinstance(rows, int) else 0


def merge_linears(block: Block) -> Block:
    """The block with one product for all linears that share an input, at the first of them.

    A linear stays as it is where anything else reads its weight, or computes in other types.
    """
    groups = {group[0].op: group for group in _groups(block)}
    if not groups:
        return block
    b = Builder()
    env: dict[Value, Value] = {}
    for op in block.ops:
        operands = tuple(None if v is None else env.get(v, v) for v in op.operands)
        b.loc = op.loc
        if op in groups:
            env.update(_joined(b, groups[op], operands[0]))
        if op.results and op.results[0] in env:
            env.update(_biased(b, op, env, operands))
        else:
            b.append(replace(op, operands=operands))
    return b.block(block.params, tuple(env.get(v, v) for v in block.results))


def _joined(b: Builder, group: Sequence[_Part], x: Value | None) -> dict[Value, Value]:
    """The products of a group by the results that they stand for, without biases."""
    keys = tuple(key for part in group for key in part.keys)
    defn = JoinedLinear(keys, tuple(part.rows for part in group))
    made = b.emit(defn, x)
    return {part.op.results[0]: y for part, y in zip(group, made, strict=True)}


def _biased(
    b: Builder, op: Op, env: Mapping[Value, Value], operands: Sequence[Value | None]
) -> dict[Value, Value]:
    """What a linear of a group becomes at its place, where its bias is known."""
    y, bias = env[op.results[0]], operands[2]
    return {op.results[0]: y if bias is None else b(Add(), y, bias)}


def _groups(block: Block) -> list[tuple[_Part, ...]]:
    """The linears of each input that has several, in order."""
    readers = Counter(_read(block))
    weights = {op.results[0]: op.defn.key for op in block.ops if isinstance(op.defn, Weight)}
    joined = {op.results[0]: op for op in block.ops if op.defn == Concat(0)}
    found: dict[Value, list[_Part]] = {}
    for op in block.ops:
        if not isinstance(op.defn, Linear) or casts_around(op):
            continue
        x, weight, _ = op.operands
        if x is None or weight is None:
            continue
        if keys := _keys(weight, weights, joined, readers):
            found.setdefault(x, []).append(_Part(op, keys))
    return [tuple(parts) for parts in found.values() if len(parts) > 1]


def _keys(
    weight: Value,
    weights: Mapping[Value, str],
    joined: Mapping[Value, Op],
    readers: Mapping[Value, int],
) -> tuple[str, ...]:
    """The keys of the weights that a matrix is made of, if nothing else needs them; else none."""
    parts = joined[weight].values if weight in joined else (weight,)
    if any(readers[value] != 1 for value in {weight, *parts}) or not set(parts) <= set(weights):
        return ()
    return tuple(weights[value] for value in parts)


def _read(block: Block) -> Iterator[Value]:
    """Every operand of every op, and the results."""
    for op in block.ops:
        yield from (v for v in op.operands if v is not None)
    yield from block.results


def merge_slices(block: Block) -> Block:
    """The block with one split for the slices that take a value apart, at the first of them."""
    cuts: dict[tuple[Value, int], list[Op]] = {}
    for op in block.ops:
        if isinstance(op.defn, Slice) and op.defn.step == 1:
            cuts.setdefault((op.values[0], op.defn.axis), []).append(op)
    groups = {ops[0]: sizes for ops in cuts.values() if (sizes := _pieces(ops))}
    b = Builder()
    env: dict[Value, Value] = {}
    for op in block.ops:
        operands = tuple(None if v is None else env.get(v, v) for v in op.operands)
        b.loc = op.loc
        if op in groups and isinstance(op.defn, Slice):
            ops = sorted(cuts[op.values[0], op.defn.axis], key=_start)
            pieces = b.emit(Split(op.defn.axis, groups[op]), operands[0])
            env.update({cut.results[0]: y for cut, y in zip(ops, pieces, strict=True)})
        if not op.results or op.results[0] not in env:
            b.append(replace(op, operands=operands))
    return b.block(block.params, tuple(env.get(v, v) for v in block.results))


def _pieces(ops: Sequence[Op]) -> tuple[int, ...]:
    """The sizes of slices in order, if there are several and each starts where one ends."""
    sizes: list[int] = []
    for op in sorted(ops, key=_start):
        size = op.results[0].type.shape[op.defn.attributes()["axis"]]
        if not isinstance(size, int) or _start(op) != sum(sizes):
            return ()
        sizes.append(size)
    whole = ops[0].values[0].type.shape[ops[0].defn.attributes()["axis"]]
    return tuple(sizes) if len(sizes) > 1 and sum(sizes) == whole else ()


def _start(op: Op) -> int:
    """Where a slice starts; -1 if that is not a number."""
    start = op.defn.attributes()["start"]
    return start if isinstance(start, int) else -1
