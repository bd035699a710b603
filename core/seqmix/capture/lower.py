"""Walk an exported graph and write it as ops of the IR."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from seqmix.capture import (
    aten_activation,
    aten_attention,
    aten_conv,
    aten_functions,
    aten_index,
    aten_layers,
    aten_logic,
    aten_norm,
    aten_order,
    aten_pointwise,
    aten_scatter,
    aten_segments,
    aten_shape,
    aten_statistics,
)
from seqmix.capture.aten import RULES, Call, Traces
from seqmix.capture.aten_shape import reversed_axis
from seqmix.capture.locate import locate
from seqmix.capture.marks import PREFIX
from seqmix.errors import CaptureError, did_you_mean
from seqmix.op import bound_ops
from seqmix.symbols import size_of, type_of
from seqmix_ir.builder import Builder
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, Value
from seqmix_ir.ops import Scan, Transpose

if TYPE_CHECKING:
    from seqmix.capture.stitch import Stitcher

__all__ = ["Lowering", "drop_dead"]

# Importing these modules fills the table of rules.
_RULE_MODULES = (
    aten_activation,
    aten_attention,
    aten_conv,
    aten_functions,
    aten_index,
    aten_layers,
    aten_logic,
    aten_norm,
    aten_order,
    aten_pointwise,
    aten_scatter,
    aten_segments,
    aten_shape,
    aten_statistics,
)

Entry: TypeAlias = Any
"""What a node stands for: a value, a size, a tuple of them, a submodule, or an :class:`Absent`."""

_HARMLESS = ("aten.detach_.default",)
_ADVICE = {
    torch.Tag.nondeterministic_seeded: "it is random: pass the numbers in as an input",
    torch.Tag.dynamic_output_shape: "its size depends on values: use torch.where, or a mask",
    torch.Tag.data_dependent_output: "keep the value a tensor: sizes may not depend on values",
}


@dataclass(frozen=True)
class Absent:
    """A result that the IR does not have, and why: an error only where it is used."""

    reason: str


@dataclass
class Lowering:
    """One graph of torch on its way into a builder; bodies of scans get a lowering of their own."""

    root: torch.nn.Module
    names: Mapping[str, str]
    prefix: str = ""
    b: Builder = field(default_factory=Builder)
    env: dict[torch.fx.Node, Entry] = field(default_factory=dict)
    traces: Traces = field(default_factory=Traces)
    stitcher: Stitcher | None = None
    around: str = ""
    """The module path of the loop whose body this is."""

    def run(self, graph: torch.fx.Graph, arguments: Mapping[str, Entry]) -> list[Entry]:
        """Lower what the outputs need; ``arguments`` holds the entry of every placeholder."""
        needed = _needed(graph)
        for node in graph.nodes:
            if node.op == "call_function":
                self.b.loc = locate(node, self.prefix, self.around)
            self._refuse_mutation(node)
            if node.op == "placeholder":
                self.env[node] = arguments[node.name]
            elif node.op == "output":
                return [self._entry(a) for a in node.args[0]]
            elif node in needed:
                self.env[node] = self._node(node)
        return []

    def _node(self, node: torch.fx.Node) -> Entry:
        if node.op == "get_attr":
            return self._attribute(str(node.target))
        if str(node.target) == "aten.item.default":
            return Absent("a number taken out of a tensor with .item(); keep it a tensor")
        value = node.meta.get("val")
        if isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
            return size_of(value, self.names)
        if isinstance(value, torch.SymFloat | torch.SymBool):
            return Absent("a number computed from sizes in Python; compute it with tensors")
        if node.target is operator.getitem:
            return self._entry(node.args[0])[node.args[1]]
        name = str(node.target)
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return self._higher_order(node, name)
        args = [self._argument(a) for a in node.args]
        options = {k: self._argument(v) for k, v in node.kwargs.items()}
        if name.startswith("seqmix."):
            return self._bound(name, args, options)
        if name.startswith(PREFIX):
            return self._mark(name, args)
        return self._rule(node, name, args, options)

    def _rule(
        self, node: torch.fx.Node, name: str, args: Sequence[Any], options: Mapping[str, Any]
    ) -> Entry:
        """A call of one of torch's ops."""
        if name not in RULES:
            advice = _advice(node)
            raise CaptureError(f"{self.b.loc}: the IR has no counterpart of '{name}'; {advice}")
        call = Call(self.b, node, self.names, self.traces)
        try:
            out = RULES[name](call, *args, **options)
        except IRError as error:
            raise CaptureError(f"{self.b.loc}: '{name}' cannot be captured: {error}") from error
        except TypeError as error:
            raise CaptureError(
                f"{self.b.loc}: '{name}' is called in a way that is not captured: {error}"
            ) from error
        _check_result(call, name, out)
        return out

    def _mark(self, name: str, args: Sequence[Any]) -> Entry:
        """The beginning or the end of a branch that is traced, or the place of all branches."""
        if self.stitcher is None:
            raise CaptureError(f"{self.b.loc}: '{name}' stands outside of a model")
        kind = name.removeprefix(PREFIX).removesuffix(".default")
        return getattr(self.stitcher, kind)(self.b, *args)

    def _bound(self, name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Entry:
        """A call of an op that seqmix.op bound: the op itself, without its saved tensors."""
        torch_name = name.removeprefix("seqmix.").removesuffix(".default")
        known = bound_ops()
        if torch_name not in known:
            raise CaptureError(
                f"{self.b.loc}: '{name}' is not bound to an op of the IR"
                f"{did_you_mean(torch_name, known)}; gradients are not captured"
            )
        bound = known[torch_name]
        flat = [v for a in args for v in (a if isinstance(a, list) else [a])]
        attributes = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
        results = self.b.emit(bound.defn(**attributes), *flat)
        if len(results) + bound.saves == 1:
            return results[0]
        saved = Absent(f"what '{bound.name}' saves for its gradient has no place in the IR")
        return (*results, *[saved] * bound.saves)

    def _higher_order(self, node: torch.fx.Node, name: str) -> Entry:
        """A call that takes graphs: scan, or torch's wrappers around a part of the graph."""
        if name == "scan":
            return self._scan(node)
        if name in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
            if name == "wrap_with_autocast":
                raise CaptureError(f"{self.b.loc}: autocast is not captured; cast in the model")
            _, body, *inputs = node.args
            inner: torch.fx.GraphModule = self._entry(body)
            outer, self.root = self.root, inner
            entries = [self._entry(i) for i in inputs]
            out = self.run(inner.graph, dict(zip(_parameters(inner), entries, strict=True)))
            self.root = outer
            return tuple(out)
        raise CaptureError(f"{self.b.loc}: '{name}' is not captured; use seqmix.scan for loops")

    def _scan(self, node: torch.fx.Node) -> Entry:
        body, carries, sequences, constants = (self._argument(a) for a in node.args)
        flipped = all(s in self.traces.flipped for s in sequences)
        sources = [self.traces.flipped[s] if flipped else s for s in sequences]
        axes = {self.traces.moved[s][1] if s in self.traces.moved else 0 for s in sources}
        axis = axes.pop() if len(axes) == 1 else 0
        if axis:
            sources = [self.traces.moved[s][0] for s in sources]
        block, used = self._body(body, len(carries) + len(sequences), constants)
        # The body was traced on torch's symbols, which name the same sizes as outside.
        defn = Scan(len(carries), len(sources), axis, flipped)
        results = self.b.emit(defn, *carries, *sources, *used, body=block)
        last, outputs = results[: len(carries)], results[len(carries) :]
        return (*last, *(self._as_torch_stacks(y, axis, flipped) for y in outputs))

    def _body(
        self, body: torch.fx.GraphModule, count: int, constants: Sequence[Entry]
    ) -> tuple[Block, list[Value]]:
        """The body as a block, and the constants that it uses; sizes need no parameter."""
        around = self.b.loc.text.partition(" (")[0]
        inner = Lowering(body, self.names, self.prefix, Builder(self.b.loc), around=around)
        placeholders = [n for n in body.graph.nodes if n.op == "placeholder"]
        entries = [_parameter(n, self.names) for n in placeholders]
        out = inner.run(body.graph, dict(zip(_parameters(body), entries, strict=True)))
        block = drop_dead(inner.b.block([e for e in entries if isinstance(e, Value)], out))
        wanted = {v for op in block.ops for v in op.operands} | set(block.results)
        pairs = [
            (entry, constant)
            for entry, constant in zip(entries[count:], constants, strict=True)
            if entry in wanted
        ]
        params = (*entries[:count], *(entry for entry, _ in pairs))
        return Block(params, block.ops, block.results), [constant for _, constant in pairs]

    def _as_torch_stacks(self, y: Value, axis: int, flipped: bool) -> Value:
        """An output with the axis in front and backwards, as torch's scan returns it.

        torch undoes both right after; the traces then lead back to ``y`` itself.
        """
        front = y
        if axis:
            perm = (axis, *(a for a in range(y.type.rank) if a != axis))
            front = self.b(Transpose(perm), y)
            self.traces.moved[front] = (y, axis)
        if not flipped:
            return front
        back = reversed_axis(self.b, front, 0)
        self.traces.flipped[back] = front
        return back

    def _attribute(self, target: str) -> Entry:
        found: Any = self.root
        for part in target.split("."):
            found = getattr(found, part)
        if isinstance(found, torch.Tensor):
            raise CaptureError(
                f"{self.b.loc}: the tensor constant '{target}' is used inside a nested graph; "
                "register it as a buffer, or pass it to seqmix.scan as a constant"
            )
        return found

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return self._entry(argument)
        if isinstance(argument, list | tuple):
            return [self._argument(a) for a in argument]
        return argument

    def _entry(self, node: Any) -> Entry:
        entry = self.env[node] if isinstance(node, torch.fx.Node) else node
        if isinstance(entry, Absent):
            raise CaptureError(f"{self.b.loc}: {entry.reason}")
        return entry

    def _refuse_mutation(self, node: torch.fx.Node) -> None:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable or str(node.target) in _HARMLESS:
            return
        raise CaptureError(
            f"{self.b.loc}: '{node.target}' changes a tensor in place; the IR has no mutation, "
            "write a new tensor instead (x = x + y, torch.where, torch.cat, scatter)"
        )


def drop_dead(block: Block) -> Block:
    """The block without the ops whose results nobody uses."""
    used = set(block.results)
    kept = []
    for op in reversed(block.ops):
        if used.intersection(op.results):
            kept.append(op)
            used.update(v for v in op.operands if v is not None)
    return Block(block.params, tuple(reversed(kept)), block.results)


def _advice(node: torch.fx.Node) -> str:
    """What to do about an op without a rule, from what torch says of its kind."""
    for tag in getattr(node.target, "tags", ()):
        if tag in _ADVICE:
            return _ADVICE[tag]
    return "write it with other ops, or bind an op with seqmix.op"


def _needed(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The nodes that the output depends on: torch's run-time checks are not among them."""
    needed: set[torch.fx.Node] = set()
    stack = [n for n in graph.nodes if n.op == "output"]
    while stack:
        for node in stack.pop().all_input_nodes:
            if node not in needed:
                needed.add(node)
                stack.append(node)
    return needed


def _parameters(module: torch.fx.GraphModule) -> list[str]:
    return [n.name for n in module.graph.nodes if n.op == "placeholder"]


def _parameter(node: torch.fx.Node, names: Mapping[str, str]) -> Entry:
    value = node.meta["val"]
    if isinstance(value, int | torch.SymInt):
        return size_of(value, names)
    return Value(type_of(value, names))


def _check_result(call: Call, name: str, out: Any) -> None:
    """CaptureError when a rule's results are not what torch says: a rule that is wrong."""
    found = out if isinstance(out, tuple) else (out,)
    wanted = call.types if isinstance(out, tuple) else (call.type,)
    for have, want in zip(found, wanted, strict=True):
        if have.type.dtype == want.dtype and have.type.rank == want.rank:
            continue
        raise CaptureError(
            f"{call.b.loc}: '{name}' gives {want} in torch and {have.type} in the IR; "
            "report this with the call"
        )
