"""Capture a whole model: inputs, sizes and names all follow from its state specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from seqmix.capture.export import Axes, Captured, capture_function
from seqmix.dtypes import torch_dtype
from seqmix.errors import CaptureError
from seqmix.state import State, StateSpec
from seqmix_ir.graph import DimInfo, Module

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
    """:func:`capture`, with the tensors that the module's weights name."""
    specs = model.state_specs()
    entries = [(f"state.{i}.{key}", spec) for i, s in enumerate(specs) for key, spec in s.items()]
    names = [name for name, _ in entries]
    return capture_function(
        _Flat(model, specs, logits_to_keep),
        _examples(model, [spec for _, spec in entries]),
        input_names=["input_ids", "positions", *names],
        output_names=["logits", *names],
        dynamic=[("B", "S"), ("B", "S"), *(_axes(spec) for _, spec in entries)],
        dims=_dims(specs),
        name=name,
        graph="forward",
        prefix="model.",
    )


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
