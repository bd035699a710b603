"""The pass ``group``: ops that one pass over memory can compute become one op with a body.

Elementwise ops, casts and reductions of the last axis that feed each other are joined as long as
they run over the same rows, nothing costly is computed twice, and no cycle arises. Layout ops in
front of them (reshape, transpose, slice, concat, gather ..) are index maps and go inside.
Backends decide what they can generate; what stays outside is reported with its reason.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from seqmix_ir.builder import Builder
from seqmix_ir.defn import Array, OpDef, Run, op
from seqmix_ir.dims import Size
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, Module, Op, Value
from seqmix_ir.passes.dce import dce_block
from seqmix_ir.passes.group_body import fused_body, label_of
from seqmix_ir.passes.group_members import (
    COMPOSITE,
    FOREIGN,
    Refusal,
    expanded,
    possible_leads,
    refused,
)
from seqmix_ir.passes.group_order import Order
from seqmix_ir.passes.group_pull import is_layout
from seqmix_ir.passes.group_trace import Trace, UnmappableError, trace
from seqmix_ir.types import TensorType

__all__ = ["Fused", "Fusion", "Grouping", "Refusal", "fused_lead", "group"]

_MOST_OPS = 48
_MOST_OPERANDS = 24
_MOST_RESULTS = 8

_COPIES = frozenset({"concat", "gather", "gather_elements", "pad"})


@op
class Fused(OpDef):
    """The ops of its body, computed in one pass over rows of these ``lead`` sizes."""

    name = "fused"
    operands = ("*xs",)
    results = ("*ys",)
    region = True
    label: str
    lead: tuple[Size, ...]

    def infer(self, *xs: TensorType | None, body: Block) -> tuple[TensorType, ...]:
        wanted = [p.type for p in body.params]
        if list(xs) != wanted:
            raise IRError(f"the body takes ({', '.join(map(str, wanted))})")
        return tuple(r.type for r in body.results)

    def evaluate(self, run: Run, *xs: Array, body: Block) -> tuple[Array, ...]:
        return run.block(body, xs)


@dataclass(frozen=True)
class Fusion:
    """One group: what it is called, the ops that it computes, where the first came from."""

    label: str
    ops: tuple[str, ...]
    loc: str
    repeated: tuple[str, ...] = ()
    """Cheap ops that are computed more than once."""


@dataclass
class Grouping:
    """What was fused, and how often which reason kept an op outside."""

    fused: list[Fusion] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)


def fused_lead(op: Op) -> tuple[Size, ...]:
    """The sizes of the rows that a ``fused`` op runs over."""
    lead: tuple[Size, ...] = op.defn.attributes()["lead"]
    return lead


def group(module: Module, refuse: Refusal) -> tuple[Module, Grouping]:
    """The module with its groups as ``fused`` ops, and the record of what was done.

    ``refuse`` says what a backend cannot generate. Bodies of other ops stay as they are.
    """
    record = Grouping()
    graphs = [g.with_block(_Groups(g.block, refuse, record).rebuilt()) for g in module.graphs]
    return dataclasses.replace(module, graphs=tuple(graphs)), record


@dataclass
class _Group:
    """Ops that are computed together, over rows of these sizes."""

    ops: tuple[Op, ...]
    lead: tuple[Size, ...]
    trace: Trace = field(default_factory=Trace)

    def is_worth(self) -> bool:
        """Whether anything is saved: a tensor between two ops, or a copy in front of one."""
        copies = {o for o in self.trace.mapped if o.name in _COPIES}
        return len(self.ops) > 1 or not copies <= set(self.ops)


class _Groups:
    """The groups of one block."""

    def __init__(self, block: Block, refuse: Refusal, record: Grouping) -> None:
        self._block = block
        self._record = record
        self._makers = {r: o for o in block.ops for r in o.results}
        self._place = {o: i for i, o in enumerate(block.ops)}
        self._results = set(block.results)
        self._readers: dict[Value, list[Op]] = {}
        for reader in block.ops:
            for value in reader.operands:
                if value is not None:
                    self._readers.setdefault(value, []).append(reader)
        self._refused = {o: refused(o, refuse) for o in block.ops}
        self._order = Order(self._solid_inputs(o) for o in block.ops)
        self._expanded = {o: expanded(o) for o in block.ops if o.name in COMPOSITE}
        self._group_of: dict[Op, _Group] = {}
        self._why: dict[Op, str] = {}

    def rebuilt(self) -> Block:
        """The block with a ``fused`` op for every group of two ops or more."""
        for this in self._block.ops:
            if self._refused[this] is None and (not is_layout(this) or self._is_copy(this)):
                self._place_op(this)
        self._explain()
        return self._emit()

    def _is_copy(self, this: Op) -> bool:
        """Whether an index map must write what it reads, as an op that is in no group needs it."""
        return this.name in _COPIES and self._is_needed(this.results[0])

    def _is_needed(self, value: Value) -> bool:
        """Whether an op that is in no group reads a value, or an index map of it."""
        if value in self._results:
            return True
        for reader in self._readers.get(value, ()):
            looked_through = self._absorbed(reader) and reader.name not in _COPIES
            if looked_through and self._is_needed(reader.results[0]):
                return True
            if self._refused[reader] is not None:
                return True
        return False

    def _absorbed(self, this: Op) -> bool:
        return is_layout(this) and self._refused[this] is None

    def _solid_inputs(self, this: Op) -> set[int]:
        """Positions of the ops that compute what ``this`` reads, layout ops looked through."""
        found, waiting = set(), [v for v in this.operands if v is not None]
        while waiting:
            maker = self._makers.get(waiting.pop())
            if maker is None:
                continue
            if self._absorbed(maker):
                waiting += [v for v in maker.operands if v is not None]
            else:
                found.add(self._place[maker])
        return found

    def _place_op(self, this: Op) -> None:
        """Join the op with the groups that it reads, the latest first."""
        try:
            own = self._checked((this,), possible_leads(this))
        except UnmappableError as error:
            self._why[this] = str(error)
            return
        self._group_of[this] = own
        for position in sorted(self._solid_inputs(this), reverse=True):
            other = self._group_of.get(self._block.ops[position])
            mine = self._group_of[this]
            if other is not None and other is not mine:
                self._join(other, mine)

    def _join(self, first: _Group, second: _Group) -> None:
        """One group of two, where that is possible."""
        places = [[self._place[o] for o in g.ops] for g in (first, second)]
        if self._order.between(places[0][0], places[1][0]):
            self._note(first, second, "what lies between it and its neighbour is in no group")
            return
        ops = tuple(sorted((*first.ops, *second.ops), key=self._place.__getitem__))
        leads = dict.fromkeys([first.lead, second.lead, *possible_leads(second.ops[0])])
        try:
            joined = self._checked(ops, tuple(leads))
        except UnmappableError as error:
            self._note(first, second, str(error))
            return
        self._order.join(places[0][0], places[1][0])
        self._group_of.update(dict.fromkeys(ops, joined))

    def _note(self, first: _Group, second: _Group, reason: str) -> None:
        """Keep why two groups are not one, for ops that stay alone."""
        for this in (*first.ops, *second.ops):
            self._why[this] = reason

    def _checked(self, ops: tuple[Op, ...], leads: Sequence[tuple[Size, ...]]) -> _Group:
        """The group of these ops; UnmappableError with the last reason where no rows fit."""
        if len(ops) > _MOST_OPS:
            raise UnmappableError(f"the group would have more than {_MOST_OPS} ops")
        inside = self._inside(ops)
        outputs = [inside_result for inside_result in self._outputs(ops)]
        if len(outputs) > _MOST_RESULTS:
            raise UnmappableError(f"the group would have more than {_MOST_RESULTS} results")
        reason = UnmappableError("nothing reads it")
        for lead in leads:
            try:
                found = trace(inside, outputs, lead)
            except UnmappableError as error:
                reason = error
                continue
            if len(found.leaves) > _MOST_OPERANDS:
                raise UnmappableError(f"the group would read more than {_MOST_OPERANDS} tensors")
            if found.leaves:
                return _Group(ops, lead, found)
        raise reason

    def _inside(self, ops: Iterable[Op]) -> dict[Value, Op]:
        """What a group makes: its ops, those they are written in, and all layout ops."""
        inside = {r: o for r, o in self._makers.items() if self._absorbed(o)}
        for this in ops:
            made = self._expanded.get(this)
            if made is None:
                inside[this.results[0]] = this
                continue
            inside.update({r: o for o in made.ops for r in o.results})
            # The op's own result is that of what it is written in.
            inside[this.results[0]] = made.maker
        return inside

    def _outputs(self, ops: Sequence[Op]) -> list[Value]:
        members = set(ops)
        return [o.results[0] for o in ops if self._escapes(o.results[0], members)]

    def _escapes(self, value: Value, members: set[Op]) -> bool:
        """Whether anything but the members reads a value, or an index map of it."""
        if value in self._results:
            return True
        for reader in self._readers.get(value, ()):
            if reader in members:
                if self._is_looked_through(reader, members):
                    return True
            elif not self._absorbed(reader) or self._escapes(reader.results[0], members):
                return True
        return False

    def _is_looked_through(self, this: Op, members: set[Op]) -> bool:
        """Whether another group may read through an index map that a member writes as a copy."""
        if not self._absorbed(this):
            return False
        return any(
            self._refused[reader] is None
            and (not self._absorbed(reader) or self._is_looked_through(reader, members))
            for reader in self._readers.get(this.results[0], ())
            if reader not in members
        )

    def _explain(self) -> None:
        """Count why ops are not in a group."""
        for this in self._block.ops:
            if is_layout(this) or this.name == "weight":
                continue
            found, reason = self._group_of.get(this), self._refused[this]
            if reason is None and (found is None or not found.is_worth()):
                reason = self._why.get(this, "nothing next to it can be computed with it")
            if reason and reason != FOREIGN:
                self._record.left[f"{this.name}: {reason}"] += 1

    def _emit(self) -> Block:
        """The ops that are left and the groups, in an order in which all operands are there."""
        b = Builder()
        self._fresh: dict[Value, Value] = {}
        done: set[int] = set()
        waiting = [m for r in reversed(self._block.results) if (m := self._makers.get(r))]
        waiting = [*waiting, *reversed(self._block.ops)]
        while waiting:
            this = waiting[-1]
            found = self._group_of.get(this)
            grouped = found is not None and found.is_worth()
            key = id(found) if grouped else id(this)
            needs = self._needs(this, found if grouped else None)
            missing = [m for m in needs if self._key(m) not in done]
            if key in done or not missing:
                waiting.pop()
            else:
                waiting += missing
                continue
            if key not in done:
                done.add(key)
                b.append(self._fused(found) if found is not None and grouped else this)
        return dce_block(b.block(self._block.params, self._block.results))

    def _key(self, this: Op) -> int:
        found = self._group_of.get(this)
        return id(found) if found is not None and found.is_worth() else id(this)

    def _needs(self, this: Op, found: _Group | None) -> list[Op]:
        values = this.operands if found is None else tuple(found.trace.leaves)
        return [m for v in values if v is not None and (m := self._makers.get(v)) is not None]

    def _fused(self, found: _Group) -> Op:
        """The op of a group."""
        made = {r: o for r, o in self._inside(found.ops).items()}
        outputs = self._outputs(found.ops)
        leaves = tuple(found.trace.leaves)
        params = {v: Value(v.type, self._hint(v)) for v in leaves}
        body = fused_body(made, outputs, params)
        label = label_of(found.ops)
        loc = found.ops[0].loc
        repeated = tuple(f"{o.name} x{n}" for o, n in found.trace.repeated.items())
        names = tuple(o.name for o in found.ops)
        self._record.fused.append(Fusion(label, names, str(loc), repeated))
        results = tuple(outputs)
        return Op(Fused(label, found.lead), leaves, results, body, loc)

    def _hint(self, value: Value) -> str:
        """A name for an operand, the same in every layer: that of the weight, or of its op."""
        maker = self._makers.get(value)
        name = value.hint
        if maker is not None and maker.name == "weight":
            name = str(maker.defn.attributes()["key"])
        words = [word for word in name.split(".") if word and not word.isdigit()]
        return "_".join(words[-2:]) or ("" if maker is None else maker.name)
