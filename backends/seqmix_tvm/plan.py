"""Which ops share a kernel: what is computed on the way, what lies in memory, what ends a product.

A value is inlined where its only reader takes each element once. The result of an anchor (an op
with a loop of its own: a product, a sum, a norm) may go through a chain of pointwise ops before it
is stored: its epilogue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from seqmix_ir.graph import Block, Op, Value
from seqmix_ir.ops import Reshape
from seqmix_tvm.quantise import stored_weight
from seqmix_tvm.rules import RULES
from seqmix_tvm.rules.layout import FLAT
from seqmix_tvm.rules.pointwise import COSTS
from seqmix_tvm.rules.pointwise import RULES as POINTWISE

__all__ = [
    "ANCHORS",
    "Group",
    "Reads",
    "hoisted",
    "is_leaf",
    "is_scalar",
    "plan_block",
    "with_copies",
]

_LARGEST = 48
"""More ops than this are not made into one expression."""

_MOVES = frozenset({"constant", "iota", "size", "expand", "slice", "transpose"}) | FLAT
"""Ops that compute nothing: they are repeated rather than stored."""

_BIJECTIVE = FLAT | {"transpose"}


@dataclass(frozen=True)
class Reads:
    """How an anchor reads its operands.

    ``once``: places whose elements are each read once, so that they may be computed on the way.
    ``views``: places that may be any rearrangement of what lies in memory. All others must lie in
    memory as they are. ``epilogue`` is whether the result may go through further ops.
    """

    once: frozenset[int] = frozenset()
    views: frozenset[int] = frozenset()
    epilogue: bool = True


_FIRST = frozenset({0})

ANCHORS: Mapping[str, Reads] = {
    "argmax": Reads(once=_FIRST),
    "attention": Reads(),
    "causal_conv1d": Reads(epilogue=False),
    "concat": Reads(once=frozenset(range(64)), epilogue=False),
    "cumsum": Reads(once=_FIRST),
    "layer_norm": Reads(views=_FIRST),
    "linear": Reads(),
    "linear_attention": Reads(
        once=frozenset({2}), views=frozenset({0, 1, 2, 3, 4}), epilogue=False
    ),
    "linear_scan": Reads(once=frozenset({0, 1, 2}), epilogue=False),
    "long_conv": Reads(),
    "matmul": Reads(views=frozenset({0, 1})),
    "pad": Reads(once=_FIRST, epilogue=False),
    "reduce": Reads(once=_FIRST),
    "rms_norm": Reads(views=_FIRST),
    "scan": Reads(epilogue=False),
    "scatter_elements": Reads(once=frozenset({0, 1, 2}), epilogue=False),
    "softmax": Reads(views=_FIRST),
}


@dataclass(frozen=True, eq=False)
class Group:
    """The ops of one kernel. ``root`` makes what is stored; ``chain`` leads from anchor to root."""

    root: Op
    anchor: Op | None
    ops: tuple[Op, ...]
    inputs: tuple[Value, ...]
    chain: tuple[Op, ...] = ()

    @property
    def results(self) -> tuple[Value, ...]:
        """What the kernel stores."""
        return self.root.results


@dataclass
class _Planner:
    block: Block
    uses: dict[Value, list[tuple[Op, int]]] = field(default_factory=lambda: defaultdict(list))
    made_by: dict[Value, Op] = field(default_factory=dict)
    inlined: set[Value] = field(default_factory=set)
    sizes: dict[Value, int] = field(default_factory=dict)
    costs: dict[Value, int] = field(default_factory=dict)
    claimed: dict[Op, tuple[Op, ...]] = field(default_factory=dict)
    """Root op by the chain from the anchor to it; the anchor comes first."""

    def run(self) -> list[Group]:
        for op in self.block.ops:
            self.made_by.update(dict.fromkeys(op.results, op))
            for place, value in enumerate(op.operands):
                if value is not None:
                    self.uses[value].append((op, place))
        for op in self.block.ops:
            self._decide(op)
        for op in self.block.ops:
            self._claim(op)
        absorbed = {op for chain in self.claimed.values() for op in chain[:-1]}
        roots = (op for op in self.block.ops if not is_leaf(op) and op not in absorbed)
        return [self._group(op) for op in roots if not self.inlined.issuperset(op.results)]

    def _decide(self, op: Op) -> None:
        """Whether the op's result is computed where it is read."""
        inner = [v for v in op.operands if v in self.inlined]
        size = 1 + sum(self.sizes[v] for v in inner if v is not None)
        cost = sum(self.costs[v] for v in inner if v is not None)
        cost += 0 if op.name in _MOVES else COSTS.get(op.name, 1)
        for value in op.results:
            self.sizes[value], self.costs[value] = size, cost
        if is_leaf(op) or op.name in ANCHORS or size > _LARGEST:
            return
        (result,) = op.results
        if result not in self.block.results and self._may_inline(result, cost):
            self.inlined.add(result)

    def _may_inline(self, value: Value, cost: int) -> bool:
        readers = self.uses[value]
        if not readers:
            return True
        if cost and len({op for op, _ in readers}) > 1 and not is_scalar(value):
            return False
        return all(self._accepts(op, place, value, cost) for op, place in readers)

    def _accepts(self, op: Op, place: int, value: Value, cost: int) -> bool:
        """Whether a reader takes a value that is computed on the way."""
        reads = ANCHORS.get(op.name)
        if reads is not None:
            if place in reads.once:
                return True
            if op.name == "linear" and place == 1 and self._is_widened(value):
                return True
            rearranged = cost == 0 and (place in reads.views or self._is_flat(value))
            return rearranged and not self._is_generated(value)
        if op.name not in RULES:
            return False
        if cost == 0 or is_scalar(value):
            return True
        if op.name == "gather" and place == 0:
            return False
        shape = op.results[0].type.shape
        if value.type.shape == shape or op.name in _MOVES:
            return op.name != "expand"
        if cost <= 2:
            return True
        # What is repeated along the last axis is computed once for a row of it, but for each
        # element where the loop over rows is that of a product.
        repeated = value.type.rank > 0 and value.type.shape[-1] == 1
        return repeated and not self._ends_anchor(op)

    def _ends_anchor(self, op: Op, depth: int = 6) -> bool:
        """Whether an op may belong to the epilogue of another that has loops of its own."""
        for value in op.operands:
            made = None if value is None else self.made_by.get(value)
            if value is None or made is None or not self._continues(op, value):
                continue
            if made.name in ANCHORS and ANCHORS[made.name].epilogue:
                return True
            if depth and self._ends_anchor(made, depth - 1):
                return True
        return False

    def _is_widened(self, value: Value) -> bool:
        """Whether a value is a weight in a smaller type, which its product widens on the way."""
        stored, _ = stored_weight(value, self.made_by.get)
        made = None if stored is None else self.made_by.get(stored)
        return stored is not value and made is not None and is_leaf(made)

    def _is_flat(self, value: Value) -> bool:
        """Whether a value lies in memory as it is, perhaps under another shape."""
        op = self.made_by.get(value)
        if op is None or is_leaf(op):
            return True
        if op.name not in FLAT:
            return value not in self.inlined and op.name not in _MOVES
        (x,) = op.values
        return x not in self.inlined or self._is_flat(x)

    def _is_generated(self, value: Value) -> bool:
        """Whether a value comes from no memory at all."""
        op = self.made_by.get(value)
        if op is None or is_leaf(op) or value not in self.inlined | set(op.results):
            return False
        return op.name in ("constant", "iota", "size") or any(
            v is not None and self._is_generated(v) for v in op.operands if op.name in _MOVES
        )

    def _claim(self, anchor: Op) -> None:
        """Let the anchor's result go through the ops that lead to what is stored."""
        reads = ANCHORS.get(anchor.name)
        if reads is None or not reads.epilogue or len(anchor.results) != 1:
            return
        chain, (value,) = [anchor], anchor.results
        while value not in self.block.results:
            readers = {op for op, _ in self.uses[value]}
            if len(readers) != 1:
                break
            (op,) = readers
            if not self._continues(op, value):
                break
            chain.append(op)
            (value,) = op.results
            if value not in self.inlined:
                break
        while len(chain) > 1 and chain[-1].results[0] in self.inlined:
            chain.pop()
        root = chain[-1]
        if len(chain) > 1 and root not in self.claimed:
            self.claimed[root] = tuple(chain)

    def _continues(self, op: Op, value: Value) -> bool:
        if op.name in _BIJECTIVE:
            return True
        return op.name in POINTWISE and op.results[0].type.shape == value.type.shape

    def _group(self, root: Op) -> Group:
        chain = self.claimed.get(root, ())
        anchor = chain[0] if chain else (root if root.name in ANCHORS else None)
        inside = {op.results[0] for op in chain[:-1]}
        ops: dict[Op, None] = {}
        inputs: dict[Value, None] = {}

        def visit(op: Op) -> None:
            for value in op.operands:
                if value is None:
                    continue
                if value in self.inlined or value in inside:
                    visit(self.made_by[value])
                else:
                    inputs[value] = None
            ops[op] = None

        visit(root)
        return Group(root, anchor, tuple(ops), tuple(inputs), chain)


def plan_block(block: Block) -> list[Group]:
    """The kernels of a block, in an order in which they can run."""
    return _Planner(block).run()


def with_copies(block: Block) -> Block:
    """A block every result of which is made by an op of its own, so that no two share memory."""
    ops, results, seen = list(block.ops), [], set(block.params)
    seen |= {op.results[0] for op in block.ops if is_leaf(op)}
    for value in block.results:
        if value in seen:
            copy = Value(value.type, value.hint)
            ops.append(Op(Reshape(value.type.shape), (value,), (copy,)))
            value = copy
        seen.add(value)
        results.append(value)
    return Block(block.params, tuple(ops), tuple(results))


def hoisted(block: Block) -> Block:
    """A block whose scans read their weights and constant arrays from outside."""
    ops: list[Op] = []
    for op in block.ops:
        if op.body is None:
            ops.append(op)
            continue
        body = hoisted(op.body)
        leaves = [inner for inner in body.ops if is_leaf(inner)]
        outer = [Value(leaf.results[0].type) for leaf in leaves]
        ops += [
            Op(leaf.defn, (), (v,), None, leaf.loc) for leaf, v in zip(leaves, outer, strict=True)
        ]
        params = (*body.params, *(leaf.results[0] for leaf in leaves))
        rest = tuple(inner for inner in body.ops if not is_leaf(inner))
        made = Block(params, rest, body.results)
        ops.append(Op(op.defn, (*op.operands, *outer), op.results, made, op.loc))
    return Block(block.params, tuple(ops), block.results)


def is_leaf(op: Op) -> bool:
    """Whether the op stands for memory that is there from the start."""
    if op.name == "weight":
        return True
    return op.name == "constant" and isinstance(op.defn.attributes()["value"], tuple)


def is_scalar(value: Value) -> bool:
    """Whether a value has one element."""
    return all(size == 1 for size in value.type.shape)
