"""A graph that torch.compile made, as a program: what its inputs are, and how it is captured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx.traceback
from torch import Tensor, fx, nn

from seqmix.backend import Program
from seqmix.capture import Axes, capture_function
from seqmix.config import BlockConfig, Kind, ModelConfig
from seqmix.dynamo_plain import PlainInterpreter
from seqmix.errors import CaptureError
from seqmix.weights import Weights
from seqmix_ir.graph import DimInfo

__all__ = ["Signature", "program_of_graph"]

_STATIC = "_dynamo_static_input_type"


@dataclass
class Signature:
    """What the arguments of a graph stand for, by their place, and what it returns."""

    tensors: dict[str, int] = field(default_factory=dict)
    """Arguments that are inputs of the program, by name."""
    weights: dict[int, str] = field(default_factory=dict)
    """Parameters and buffers: they are compiled in."""
    axes: dict[str, Axes] = field(default_factory=dict)
    """Of every input: the names of the sizes that vary."""
    sizes: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Arguments that are the size of an input: its name, and the axis."""
    others: list[int] = field(default_factory=list)
    """Arguments that are numbers from elsewhere; those that nothing reads are nowhere here."""
    varies: bool = True
    """Whether every size that varies stands alone at an axis of an input."""
    outputs: list[Any] = field(default_factory=list)

    @staticmethod
    def of(graph: fx.GraphModule) -> Signature:
        """Read the placeholders and the output."""
        found, symbols = Signature(), dict[str, tuple[str, int]]()
        nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        for place, node in enumerate(nodes):
            value = node.meta.get("example_value")
            if not isinstance(value, Tensor):
                continue
            if _STATIC in (node.meta.get("tensor_dict") or {}):
                found.weights[place] = node.name
                continue
            found.tensors[node.name] = place
            found.axes[node.name] = found._axes(node.name, value, symbols)
        for place, node in enumerate(nodes):
            if place in found.weights or node.name in found.tensors:
                continue
            name = _symbol(node.meta.get("example_value"))
            if name in symbols:
                found.sizes[place] = symbols[name]
            elif node.users:
                found.others.append(place)
        found.outputs = list(next(n for n in graph.graph.nodes if n.op == "output").args[0])
        return found

    def numbers(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The numbers from elsewhere among the arguments."""
        return tuple(args[i] for i in self.others)

    def shapes(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The shapes of the inputs."""
        return tuple(tuple(args[i].shape) for i in self.tensors.values())

    def names_of_outputs(self) -> list[str]:
        """The names of those outputs that are computed; constants are not."""
        return [f"out{i}" for i, out in enumerate(self.outputs) if isinstance(out, fx.Node)]

    def outputs_of(self, results: Mapping[str, Tensor], args: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs in their order; tensors on the device of the arguments, sizes as numbers."""
        device = next((args[i].device for i in self.tensors.values()), torch.device("cpu"))
        return tuple(
            _as_torch(out, results[f"out{i}"], device) if isinstance(out, fx.Node) else out
            for i, out in enumerate(self.outputs)
        )

    def _axes(self, name: str, value: Tensor, symbols: dict[str, tuple[str, int]]) -> Axes:
        axes: list[str | int | None] = []
        for axis, size in enumerate(value.shape):
            symbol = _symbol(size)
            axes.append(symbol)
            if symbol is not None:
                symbols.setdefault(symbol, (name, axis))
            elif isinstance(size, torch.SymInt):
                self.varies = False
        return tuple(axes)


def program_of_graph(
    graph: fx.GraphModule, signature: Signature, args: Sequence[Any], *, varying: bool
) -> Program:
    """Capture the graph for these arguments; with ``varying`` for any size that torch lets vary.

    Raises CaptureError for what the IR has no counterpart of.
    """
    _refuse_odd_numbers(signature, args)
    dynamic = [axes if varying else None for axes in signature.axes.values()]
    named = {axis for axes in dynamic for axis in axes or () if isinstance(axis, str)}
    captured = capture_function(
        _Flat(graph, signature, args),
        [args[i].detach() for i in signature.tensors.values()],
        input_names=list(signature.tensors),
        output_names=signature.names_of_outputs(),
        dynamic=dynamic,
        # torch compiles anew for sizes of 0 and 1.
        dims=[DimInfo(name, 2) for name in sorted(named)],
        name="torch_compile",
    )
    return Program(captured.module, Weights.of_tensors(captured.weights), _no_model())


class _Flat(nn.Module):
    """The graph with its weights inside, as a function of tensors that returns tensors."""

    def __init__(self, graph: fx.GraphModule, signature: Signature, args: Sequence[Any]) -> None:
        super().__init__()
        self.graph = graph
        self._signature = signature
        self._numbers = {i: args[i] for i in signature.others}
        self._count = len(args)
        for place, name in signature.weights.items():
            self.register_buffer(name, args[place].detach(), persistent=False)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Call the graph with every argument in its place."""
        signature, given = self._signature, dict(zip(self._signature.tensors, tensors, strict=True))
        args: dict[int, Any] = dict(self._numbers)
        args |= {place: getattr(self, name) for place, name in signature.weights.items()}
        args |= {place: given[name] for name, place in signature.tensors.items()}
        args |= {place: given[n].shape[axis] for place, (n, axis) in signature.sizes.items()}
        # What torch says of each node, such as the user's line, goes over to what is captured.
        with fx.traceback.preserve_node_meta():
            out = PlainInterpreter(self.graph).run(*map(args.get, range(self._count)))
        computed = zip(signature.outputs, out, strict=True)
        return tuple(_as_tensor(value) for node, value in computed if isinstance(node, fx.Node))


def _as_tensor(value: Any) -> Tensor:
    """A size that the graph returns becomes a tensor on its way through the program."""
    return value if isinstance(value, Tensor) else torch.full((), value, dtype=torch.int64)


def _as_torch(node: fx.Node, result: Tensor, device: torch.device) -> Any:
    if isinstance(node.meta.get("example_value"), Tensor):
        return result.to(device)
    return int(result)


def _symbol(size: Any) -> str | None:
    """The name of a size that varies and stands alone."""
    if not isinstance(size, torch.SymInt):
        return None
    expression = size.node.expr
    return str(expression) if expression.is_Symbol else None


def _refuse_odd_numbers(signature: Signature, args: Sequence[Any]) -> None:
    odd = [args[i] for i in signature.others if not isinstance(args[i], int)]
    if odd:
        raise CaptureError(
            f"torch.compile: an argument of the graph is {odd[0]!r}, expected tensors and whole "
            "numbers; pass it as a tensor"
        )


def _no_model() -> ModelConfig:
    """A program needs a configuration; a graph of torch has none."""
    step = Kind.model_validate({"kind": "mlp", "hidden": 1})
    return ModelConfig(
        name="torch_compile",
        vocab_size=1,
        width=1,
        context_length=1,
        blocks=[BlockConfig(steps=[step])],
    )
