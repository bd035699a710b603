"""Capture a torch module: torch.export before any decomposition, then the walk into the IR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import OutputKind

from seqmix.capture.entries import WeightsOf, entries_of
from seqmix.capture.export import Axes, export_module
from seqmix.capture.lower import Lowering, drop_dead
from seqmix.errors import CaptureError
from seqmix_ir.graph import DimInfo, Graph, Module, Value

__all__ = ["Captured", "capture_function", "check_outputs"]


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
    exported = export_module(name, module, example_args, input_names, dynamic, dims)
    program = exported.program
    weights = WeightsOf(module, program, prefix)
    lowering = Lowering(program.graph_module, exported.names, prefix)
    entries = entries_of(lowering, program, weights, input_names)
    out = lowering.run(program.graph, entries)
    check_outputs(name, program, out, output_names)
    params = [e for e in entries.values() if isinstance(e, Value) and e.hint in set(input_names)]
    params.sort(key=lambda p: list(input_names).index(p.hint))
    block = drop_dead(lowering.b.block(params, out))
    captured = Module(name, (Graph(graph, block, tuple(output_names), exported.dims),))
    return Captured(captured, {key: weights.tensors[key] for key in captured.weights()})


def check_outputs(
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
