"""Several ops on one input as one: projections, and slices that together are all of it.

A decoder multiplies the same vector with the weights of queries, keys, values and gates. One
product with all of them side by side reads the same weights and starts the threads once; a Split
follows. The file holds the joined weights instead of their parts.

B batch, S sequence, K input width, N output width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from seqmix_ir.builder import Builder
from seqmix_ir.defn import OpDef
from seqmix_ir.graph import Block, Op, Value
from seqmix_ir.ops import Add, Concat, Linear, Slice, Weight
from seqmix_ir.passes import rewrite_block
from seqmix_onnxruntime.carriers import JoinedLinear, Split
from seqmix_onnxruntime.emit import fixed_shape
from seqmix_onnxruntime.kernels import casts_around

__all__ = ["merge_linears", "merge_slices"]


@dataclass(frozen=True)
class _Group:
    """Ops on one value that become one: what it is, and their results in its order."""

    defn: OpDef
    results: tuple[Value, ...]


def merge_linears(block: Block) -> Block:
    """The block with one product for all linears that share an input, at the first of them.

    A linear stays as it is where anything else reads its weight, or computes in other types. Each
    bias is added at the place of its linear.
    """
    readers = Counter(_read(block))
    weights = {op.results[0]: op.defn.key for op in block.ops if isinstance(op.defn, Weight)}
    joined = {op.results[0]: op for op in block.ops if op.defn == Concat(0)}
    found: dict[Value, list[tuple[Op, tuple[str, ...]]]] = {}
    for op in block.ops:
        if not isinstance(op.defn, Linear) or casts_around(op):
            continue
        x, weight, _ = op.operands
        if x is None or weight is None:
            continue
        if keys := _keys(weight, weights, joined, readers):
            found.setdefault(x, []).append((op, keys))
    return _merged(block, [_product(parts) for parts in found.values() if len(parts) > 1])


def merge_slices(block: Block) -> Block:
    """The block with one split for the slices that take a value apart, at the first of them."""
    cuts: dict[tuple[Value, int], list[Op]] = {}
    for op in block.ops:
        if isinstance(op.defn, Slice) and op.defn.step == 1:
            cuts.setdefault((op.values[0], op.defn.axis), []).append(op)
    found = ((axis, sorted(ops, key=_start)) for (_, axis), ops in cuts.items())
    return _merged(
        block,
        [
            _Group(Split(axis, sizes), tuple(op.results[0] for op in ops))
            for axis, ops in found
            if (sizes := _pieces(ops, axis))
        ],
    )


def _product(parts: Sequence[tuple[Op, tuple[str, ...]]]) -> _Group:
    """The product that stands for linears, given with the weights of each."""
    results = tuple(op.results[0] for op, _ in parts)
    sizes = tuple(fixed_shape(op, 1)[0] for op, _ in parts)
    return _Group(JoinedLinear(tuple(key for _, keys in parts for key in keys), sizes), results)


def _merged(block: Block, groups: Iterable[_Group]) -> Block:
    """The block with every group as one op, at the first of its members."""
    places = {v: (group, i) for group in groups for i, v in enumerate(group.results)}
    made: dict[Value, tuple[Value, ...]] = {}

    def rule(b: Builder, op: Op) -> tuple[Value, ...] | None:
        if not op.results or op.results[0] not in places:
            return None
        group, index = places[op.results[0]]
        if group.results[0] not in made:
            made[group.results[0]] = b.emit(group.defn, op.operands[0])
        y = made[group.results[0]][index]
        bias = op.operands[2] if isinstance(op.defn, Linear) else None
        return (y if bias is None else b(Add(), y, bias),)

    return rewrite_block(block, [rule])


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


def _pieces(ops: Sequence[Op], axis: int) -> tuple[int, ...]:
    """The sizes of slices in order, if there are several and each starts where one ends."""
    sizes: list[int] = []
    for op in ops:
        size = op.results[0].type.shape[axis]
        if not isinstance(size, int) or _start(op) != sum(sizes):
            return ()
        sizes.append(size)
    whole = ops[0].values[0].type.shape[axis]
    return tuple(sizes) if len(sizes) > 1 and sum(sizes) == whole else ()


def _start(op: Op) -> int:
    """Where a slice starts; -1 if that is not a number."""
    start = op.defn.attributes()["start"]
    return start if isinstance(start, int) else -1
