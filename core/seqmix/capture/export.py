"""Run torch.export on a module, with sizes that vary, and watch what it decides for good."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind, InputSpec

from seqmix.capture.failure import explain, refuse_branches
from seqmix.capture.guards import watched_guards
from seqmix.errors import CaptureError
from seqmix.symbols import size_of
from seqmix_ir.dims import Dim, show_size
from seqmix_ir.graph import DimInfo

__all__ = ["Axes", "Exported", "export_module"]

Axes: TypeAlias = "tuple[str | int | None, ...] | None"
"""Per axis of an input: the name of its size, or a number or None for a fixed one."""


@dataclass(frozen=True)
class Exported:
    """What torch.export gave: the program, and our names for torch's names of sizes (``s77``)."""

    program: torch.export.ExportedProgram
    names: dict[str, str]
    dims: tuple[DimInfo, ...]


def export_module(
    name: str,
    module: nn.Module,
    args: Sequence[Tensor],
    input_names: Sequence[str],
    dynamic: Sequence[Axes],
    dims: Sequence[DimInfo] = (),
) -> Exported:
    """Export ``module(*args)``; :func:`capture_function` says what the arguments are.

    Raises :class:`CaptureError` when the module does not work for every value of a varying size.
    """
    bounds = {info.name: info for info in dims}
    for axes in dynamic:
        for axis in axes or ():
            if isinstance(axis, str):
                bounds.setdefault(axis, DimInfo(axis))
    _check_arguments(name, args, input_names, dynamic)
    program = _export(name, module, args, dynamic, bounds)
    names = _symbol_names(name, program, input_names, dynamic)
    return Exported(program, names, tuple(bounds.values()))


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
    with _evaluating(module), watched_guards() as guards:
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
    refuse_branches(name, guards)
    return program


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Every part in eval mode, and back in the mode of its own."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


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
    specs: list[InputSpec] = program.graph_signature.input_specs
    users = [spec.arg.name for spec in specs if spec.kind == InputKind.USER_INPUT]
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
