"""Capture a torch module: torch.export before any decomposition, then the walk into the IR."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind, InputSpec, OutputKind

from seqmix.capture.failure import explain, refuse_branches
from seqmix.capture.guards import watched_guards
from seqmix.capture.lower import Lowering, drop_dead
from seqmix.errors import CaptureError
from seqmix.symbols import size_of, type_of
from seqmix_ir.dims import Dim, show_size
from seqmix_ir.graph import DimInfo, Graph, Module, Value
from seqmix_ir.ops import Weight, constant
from seqmix_ir.types import Loc

__all__ = ["Axes", "Captured", "capture_function"]

Axes: TypeAlias = "tuple[str | int | None, ...] | None"
"""Per axis of an input: the name of its size, or a number or None for a fixed one."""

# Constants up to this many elements are written into the graph.
_SMALL = 16


@dataclass(frozen=True)
class Captured:
    """A module of the IR with one graph, and the tensors that its ``weight`` ops name."""

    module: Module
    weights: dict[str, Tensor] = field(default_factory=dict)


def capture_function(
    module: nn.Module,
    example_args: Sequence[Tensor],
    *,
    input_names: Sequence[str],
    output_names: Sequence[str],
    dynamic: Sequence[Axes],
    dims: Sequence[DimInfo] = (),
    name: str = "module",
    graph: str = "forward",
    prefix: str = "",
) -> Captured:
    """Write ``module(*example_args)``, which returns tensors, as a graph of the IR.

    ``dynamic`` names the sizes that vary, per input; ``dims`` bounds them (at least 1 where it is
    silent). Every varying size needs an example of at least 2, as torch.export specialises 0 and 1.
    ``prefix`` is taken off the names of parameters and modules (for a wrapper around a model).
    Raises :class:`CaptureError` when a varying size was specialised or an op has no counterpart.
    """
    bounds = {info.name: info for info in dims}
    for axes in dynamic:
        for axis in axes or ():
            if isinstance(axis, str):
                bounds.setdefault(axis, DimInfo(axis))
    _check_arguments(name, example_args, input_names, dynamic)
    program = _export(name, module, example_args, dynamic, bounds)
    names = _symbol_names(name, program, input_names, dynamic)
    weights = _Weights(module, program, prefix)
    lowering = Lowering(program.graph_module, names, prefix)
    entries = _entries(lowering, program, weights, input_names)
    out = lowering.run(program.graph, entries)
    _check_outputs(name, program, out, output_names)
    params = [e for e in entries.values() if isinstance(e, Value) and e.hint in set(input_names)]
    params.sort(key=lambda p: list(input_names).index(p.hint))
    block = drop_dead(lowering.b.block(params, out))
    written = Graph(graph, block, tuple(output_names), tuple(bounds.values()))
    captured = Module(name, (written,))
    return Captured(captured, {key: weights.tensors[key] for key in captured.weights()})


def _export(
    name: str,
    module: nn.Module,
    args: Sequence[Tensor],
    dynamic: Sequence[Axes],
    bounds: Mapping[str, DimInfo],
) -> torch.export.ExportedProgram:
    made = {n: torch.export.Dim(n, min=info.min, max=info.max) for n, info in bounds.items()}
    per_input = [
        {i: made[axis] for i, axis in enumerate(axes or ()) if isinstance(axis, str)}
        for axes in dynamic
    ]
    training = module.training
    module.eval()
    with watched_guards() as guards:
        hook = module.register_forward_pre_hook(_unify(dynamic))
        try:
            with torch.no_grad():
                program = torch.export.export(
                    module,
                    tuple(args),
                    dynamic_shapes=_by_parameter(module, args, per_input),
                    strict=False,
                    # Guards on strides then do not fail the export; the model's own are refused.
                    prefer_deferred_runtime_asserts_over_guards=True,
                )
        except Exception as error:
            raise explain(name, error, guards) from error
        finally:
            hook.remove()
            module.train(training)
    refuse_branches(name, guards)
    return program


def _unify(dynamic: Sequence[Axes]) -> Callable[[nn.Module, Any], None]:
    """A hook that tells torch that sizes of one name are equal before the module runs."""
    equal: Any = torch._check

    def check(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen: dict[str, Any] = {}
        for arg, axes in zip(args, dynamic, strict=True):
            for size, axis in zip(arg.shape, axes or (), strict=False):
                if isinstance(axis, str):
                    equal(seen.setdefault(axis, size) == size)

    return check


def _by_parameter(module: nn.Module, args: Sequence[Tensor], shapes: Sequence[Any]) -> Any:
    """Dynamic shapes in the form of the signature: ``*args`` takes a tuple of them."""
    bound = inspect.signature(module.forward).bind(*range(len(args)))
    return tuple(
        tuple(shapes[i] for i in index) if isinstance(index, tuple) else shapes[index]
        for index in bound.arguments.values()
    )


def _check_arguments(
    name: str, args: Sequence[Tensor], input_names: Sequence[str], dynamic: Sequence[Axes]
) -> None:
    if not len(args) == len(input_names) == len(dynamic):
        raise CaptureError(
            f"{name}: {len(args)} example arguments, {len(input_names)} input names and "
            f"{len(dynamic)} shapes; give one of each per input"
        )
    for input_name, arg, axes in zip(input_names, args, dynamic, strict=True):
        if axes is not None and len(axes) != arg.ndim:
            raise CaptureError(
                f"{name}: input '{input_name}' has shape {tuple(arg.shape)}, "
                f"but its axes are {axes}"
            )
        for axis, size in zip(axes or (), arg.shape, strict=False):
            if isinstance(axis, str) and size < 2:
                raise CaptureError(
                    f"{name}: the example of input '{input_name}' has {axis} = {size}; "
                    "torch.export would fix that size, use an example of at least 2"
                )


def _symbol_names(
    name: str,
    program: torch.export.ExportedProgram,
    input_names: Sequence[str],
    dynamic: Sequence[Axes],
) -> dict[str, str]:
    """From torch's name of each varying size (``s77``) to ours; CaptureError where fixed."""
    names: dict[str, str] = {}
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    users = [spec.arg.name for spec in _specs(program, InputKind.USER_INPUT)]
    for input_name, node_name, axes in zip(input_names, users, dynamic, strict=True):
        shape = nodes[node_name].meta["val"].shape
        for axis, wanted in enumerate(axes or ()):
            if not isinstance(wanted, str):
                continue
            found = size_of(shape[axis])
            symbol = show_size(found)
            if not isinstance(found, Dim) or names.get(symbol, wanted) != wanted:
                raise CaptureError(
                    f"{name}: axis {axis} of input '{input_name}' should be any {wanted}, but the "
                    f"module fixed it to {names.get(symbol, symbol)}; do not compare sizes or use "
                    "them as Python numbers in forward"
                )
            names[symbol] = wanted
    return names


def _specs(program: torch.export.ExportedProgram, *kinds: InputKind) -> list[Any]:
    specs: list[InputSpec] = program.graph_signature.input_specs
    return [spec for spec in specs if spec.kind in kinds]


class _Weights:
    """The tensors behind an exported program's inputs, one key per tensor."""

    def __init__(
        self, module: nn.Module, program: torch.export.ExportedProgram, prefix: str
    ) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._prefix = prefix
        self._program = program
        named = [*module.named_parameters(), *module.named_buffers()]
        # Tied tensors have one name here: the first one.
        self._keys = {id(tensor): key.removeprefix(prefix) for key, tensor in named}
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


def _entries(
    lowering: Lowering,
    program: torch.export.ExportedProgram,
    weights: _Weights,
    input_names: Sequence[str],
) -> dict[str, Any]:
    """What each placeholder stands for: a parameter of the graph, a weight, or a constant."""
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    inputs = iter(input_names)
    entries: dict[str, Any] = {}
    made: dict[str, Value] = {}
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
    return entries


def _nested(value: Any) -> Any:
    return tuple(map(_nested, value)) if isinstance(value, list) else value


def _check_outputs(
    name: str,
    program: torch.export.ExportedProgram,
    out: Sequence[Any],
    output_names: Sequence[str],
) -> None:
    changed = [
        str(spec.target)
        for spec in program.graph_signature.output_specs
        if spec.kind != OutputKind.USER_OUTPUT
    ]
    if changed:
        raise CaptureError(
            f"{name}: forward changes {', '.join(changed)} in place; return new tensors instead"
        )
    if len(out) != len(output_names):
        raise CaptureError(
            f"{name}: forward returned {len(out)} tensors, expected {len(output_names)}: "
            f"{', '.join(output_names)}"
        )
    odd = [n for n, value in zip(output_names, out, strict=True) if not isinstance(value, Value)]
    if odd:
        raise CaptureError(f"{name}: output '{odd[0]}' is not a tensor; return tensors only")
