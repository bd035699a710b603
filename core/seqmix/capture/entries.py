"""What the inputs of an exported program stand for: arguments, weights, constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind, InputSpec

from seqmix.capture.lower import Lowering
from seqmix.symbols import type_of
from seqmix_ir.builder import Builder
from seqmix_ir.graph import Value
from seqmix_ir.ops import Weight, constant
from seqmix_ir.types import Loc, TensorType

__all__ = ["WeightsOf", "entries_of", "names_of_tensors"]

# Constants up to this many elements are written into the graph.
_SMALL = 16


class WeightsOf:
    """The tensors behind an exported program's inputs, one key per tensor."""

    def __init__(
        self,
        module: nn.Module,
        program: torch.export.ExportedProgram,
        prefix: str,
        keys: Mapping[int, str] | None = None,
    ) -> None:
        """``keys`` gives tensors, by id, other names than they have in the module."""
        self.tensors: dict[str, Tensor] = {}
        self.made: dict[str, Value] = {}
        """What stands for each key in the graph."""
        self._named: dict[str, Value] = {}
        self._prefix = prefix
        self._program = program
        self._keys = names_of_tensors(module, prefix) if keys is None else keys
        self._own: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
        self._own.update(module.named_buffers(remove_duplicate=False))

    def find(self, spec: InputSpec) -> tuple[str, Tensor]:
        """The key and the tensor of an input that is no argument."""
        target = str(spec.target)
        tensor = self._own.get(target)
        if tensor is None:
            tensor = self._program.constants[target]
        key = self._keys.get(id(tensor), f"constants.{target}")
        self.tensors[key] = tensor.detach()
        return key, tensor.detach()

    def note(self, spec: InputSpec, value: Value) -> None:
        """Remember what stands for a parameter or buffer; constants of forward have no name."""
        if str(spec.target) in self._own:
            self._named[str(spec.target).removeprefix(self._prefix)] = value

    def below(self, path: str) -> dict[str, Value]:
        """What stands for each parameter and buffer of a part of the module, by its name there."""
        start = f"{path}."
        return {n.removeprefix(start): v for n, v in self._named.items() if n.startswith(start)}

    def value(self, b: Builder, tensor: Tensor, type: TensorType) -> Value:
        """What stands for a tensor that need not be an input of the program."""
        key = self._keys[id(tensor)]
        if key not in self.made:
            b.loc = Loc(key)
            self.tensors[key] = tensor.detach()
            self.made[key] = b(Weight(key, type), hint=key)
        return self.made[key]


def names_of_tensors(module: nn.Module, prefix: str = "") -> dict[int, str]:
    """The name of every parameter and buffer by its id; tied tensors have one: the first."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {id(tensor): key.removeprefix(prefix) for key, tensor in named}


def entries_of(
    lowering: Lowering,
    program: torch.export.ExportedProgram,
    weights: WeightsOf,
    input_names: Sequence[str],
) -> dict[str, Any]:
    """What each placeholder stands for: a parameter of the graph, a weight, or a constant."""
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    inputs = iter(input_names)
    entries: dict[str, Any] = {}
    made = weights.made
    for spec in program.graph_signature.input_specs:
        if not hasattr(spec.arg, "name"):
            continue
        type = type_of(nodes[spec.arg.name].meta["val"], lowering.names)
        if spec.kind == InputKind.USER_INPUT:
            entries[spec.arg.name] = Value(type, next(inputs))
            continue
        key, tensor = weights.find(spec)
        lowering.b.loc = Loc(key)
        if key not in made and key.startswith("constants.") and tensor.numel() <= _SMALL:
            made[key] = constant(lowering.b, _nested(tensor.tolist()), type.dtype)
        elif key not in made:
            made[key] = lowering.b(Weight(key, type), hint=key)
        entries[spec.arg.name] = made[key]
        weights.note(spec, made[key])
    return entries


def _nested(value: Any) -> Any:
    return tuple(map(_nested, value)) if isinstance(value, list) else value
