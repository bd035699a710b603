"""Capture a whole model: inputs, sizes and names all follow from its state specs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from seqmix.capture.entries import WeightsOf, entries_of, names_of_tensors
from seqmix.capture.export import Axes, export_module
from seqmix.capture.function import Captured, capture_function, check_outputs
from seqmix.capture.lower import Lowering, drop_dead
from seqmix.capture.stitch import Plan, Reduced, Stitcher, plan_of
from seqmix.dtypes import torch_dtype
from seqmix.errors import CaptureError
from seqmix.state import State, StateSpec
from seqmix_ir.graph import DimInfo, Graph, Module, Value

if TYPE_CHECKING:
    from seqmix.model import Model

__all__ = ["capture", "capture_model"]

# Example sizes: at least 2, and different from each other so that no two are taken for one.
_BATCH, _SEQUENCE, _PAST = 2, 5, 7


def capture(model: Model, *, name: str = "model", logits_to_keep: int = 0) -> Module:
    """The model as a module with the graph ``forward``, for any B, S and P.

    Inputs ``input_ids``, ``positions``, ``state.{layer}.{key}``; outputs ``logits`` and the new
    states under the same names. Weights are named as in the model. Raises :class:`CaptureError`
    for tensor constants that are no buffers (:func:`capture_model` returns them too).
    """
    captured = capture_model(model, name=name, logits_to_keep=logits_to_keep)
    loose = [key for key in captured.weights if key.startswith("constants.")]
    if loose:
        raise CaptureError(
            f"{name}: {', '.join(loose)}: tensors made in forward from Python numbers; register "
            "them as buffers, so that they are part of the model's weights"
        )
    return captured.module


def capture_model(model: Model, *, name: str = "model", logits_to_keep: int = 0) -> Captured:
    """:func:`capture`, with the tensors that the module's weights name.

    Of branches that are equal but for their weights one is traced; where that would not be right
    (a branch that leaves something behind in the context), all are.
    """
    plan = plan_of(model)
    captured = _stitched(model, plan, name, logits_to_keep)
    return captured if not plan.refused else _whole(model, name, logits_to_keep)


def _stitched(model: Model, plan: Plan, name: str, logits_to_keep: int) -> Captured:
    """Trace the templates, and write every branch as a copy of one."""
    specs = model.state_specs()
    layers = [plan.places[t].layer for t in plan.templates]
    entries = _entries(specs, [layer for layer in layers if layer is not None])
    reduced, dims = Reduced(model, plan, logits_to_keep), _dims(specs)
    names = ["input_ids", "positions", *(name for name, _ in entries)]
    examples = _examples(model, [spec for _, spec in entries])
    exported = export_module(name, reduced, examples, names, _dynamic(entries), dims)
    if plan.refused:
        return Captured(Module(name))
    program, keys = exported.program, names_of_tensors(model)
    weights = WeightsOf(reduced, program, "model.", keys)
    stitcher = Stitcher(plan, weights, [list(spec) for spec in specs])
    lowering = Lowering(program.graph_module, exported.names, "model.", stitcher=stitcher)
    given = entries_of(lowering, program, weights, names)
    out = lowering.run(program.graph, given)
    outputs = ("logits", *stitcher.after)
    check_outputs(name, program, [*out[:1], *stitcher.after.values()], outputs)
    tokens = [v for v in given.values() if isinstance(v, Value) and v.hint in names[:2]]
    params = [*sorted(tokens, key=lambda v: names.index(v.hint)), *stitcher.states.values()]
    block = drop_dead(lowering.b.block(params, [out[0], *stitcher.after.values()]))
    captured = Module(name, (Graph("forward", block, outputs, exported.dims),))
    return Captured(captured, {key: weights.tensors[key] for key in captured.weights()})


def _whole(model: Model, name: str, logits_to_keep: int) -> Captured:
    """Trace every branch."""
    specs = model.state_specs()
    entries = _entries(specs, range(len(specs)))
    names = [name for name, _ in entries]
    return capture_function(
        _Flat(model, specs, logits_to_keep),
        _examples(model, [spec for _, spec in entries]),
        input_names=["input_ids", "positions", *names],
        output_names=["logits", *names],
        dynamic=_dynamic(entries),
        dims=_dims(specs),
        name=name,
        graph="forward",
        prefix="model.",
    )


def _entries(
    specs: list[dict[str, StateSpec]], layers: Iterable[int]
) -> list[tuple[str, StateSpec]]:
    return [(f"state.{i}.{key}", spec) for i in layers for key, spec in specs[i].items()]


def _dynamic(entries: list[tuple[str, StateSpec]]) -> list[Axes]:
    return [("B", "S"), ("B", "S"), *(_axes(spec) for _, spec in entries)]


class _Flat(nn.Module):
    """The model with its states as separate arguments and results."""

    def __init__(
        self, model: Model, specs: list[dict[str, StateSpec]], logits_to_keep: int
    ) -> None:
        super().__init__()
        self.model = model
        self._specs = specs
        self._keep = logits_to_keep

    def forward(self, input_ids: Tensor, positions: Tensor, *flat: Tensor) -> tuple[Tensor, ...]:
        given = iter(flat)
        states: list[State] = [{key: next(given) for key in specs} for specs in self._specs]
        logits, new = self.model(input_ids, positions, states, self._keep)
        out = [state[key] for state, specs in zip(new, self._specs, strict=True) for key in specs]
        return (logits, *out)


def _examples(model: Any, specs: list[StateSpec]) -> list[Tensor]:
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    ids = torch.zeros(_BATCH, _SEQUENCE, dtype=torch.int64)
    positions = torch.arange(_SEQUENCE).expand(_BATCH, _SEQUENCE) + _PAST
    states = [
        torch.full(
            spec.shape(_BATCH, _PAST),
            spec.fill,
            dtype=dtype if spec.dtype == "model" else torch_dtype(spec.dtype),
        )
        for spec in specs
    ]
    return [ids, positions, *states]


def _axes(spec: StateSpec) -> Axes:
    return tuple(axis if isinstance(axis, str) else None for axis in spec.axes)


def _dims(specs: list[dict[str, StateSpec]]) -> list[DimInfo]:
    dims = [DimInfo("B", 1), DimInfo("S", 1)]
    grows = any(spec.grows for layer in specs for spec in layer.values())
    return [*dims, DimInfo("P", 0)] if grows else dims
