"""The torch backend: the eager model itself, behind the interface of an executable."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from seqmix.backend import Availability, Backend, Executable, Program, Report
from seqmix.errors import BackendError
from seqmix.interface import (
    MANIFEST,
    InputCheck,
    check_options,
    read_manifest,
    read_module,
    write_manifest,
    write_module,
)
from seqmix.model import Model, flatten_states, initial_states, unflatten_states
from seqmix.storage import load_model, model_from_weights, save_model
from seqmix.whole_folder import whole_folder
from seqmix_ir.graph import Module, Op

__all__ = ["TorchBackend", "TorchExecutable"]


class TorchExecutable(Executable):
    """Calls a torch model without gradients; later changes of its weights show."""

    def __init__(self, model: Model, module: Module, report: Report) -> None:
        """``module`` says what the inputs look like."""
        self.config = model.config
        self.report = report
        self.model = model
        self._module = module
        self._device = model.embed.weight.device
        forward = module.graph("forward")
        self._check = InputCheck(forward, model.config, wait=self._device.type == "cpu")
        length = forward.results["logits"].type.shape[1]
        self._keep = length if isinstance(length, int) else 0

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the model on its own device; ``forward`` is the only graph."""
        self._module.graph(graph)  # Says which graphs there are.
        self._check(inputs)
        here = {name: tensor.to(self._device) for name, tensor in inputs.items()}
        ids, positions = here.pop("input_ids"), here.pop("positions")
        with torch.no_grad():
            states = unflatten_states(self.model, here)
            logits, after = self.model(ids, positions, states, self._keep)
        return {"logits": logits, **flatten_states(self.model, after)}

    def initial_state(self, batch: int) -> dict[str, Tensor]:
        """The states before the first token, on the model's device."""
        return initial_states(self.model, batch)

    def save(self, directory: Path | str) -> None:
        """Write configuration and weights."""
        with whole_folder(directory, MANIFEST) as folder:
            save_model(self.model, folder)
            write_module(folder, self._module)
            write_manifest(folder, self.report)


class TorchBackend(Backend):
    """Eager torch on a CPU or on a CUDA (or HIP) device; the target is a torch device."""

    name: ClassVar[str] = "torch"
    cached: ClassVar[bool] = False

    def probe(self) -> Availability:
        """The devices that torch sees."""
        return Availability(("cuda", "cpu") if torch.cuda.is_available() else ("cpu",))

    def supports(self, op: Op, target: str) -> str | None:
        """What was captured from torch runs in torch."""
        return None

    def default_target(self) -> str:
        """Where the model is; the CPU for a program without one."""
        return "model"

    def compile(self, program: Program, target: str, options: Mapping[str, Any]) -> Executable:
        """Take the program's model, or build it from configuration and weights."""
        check_options(self.name, options, {})
        model = program.model or model_from_weights(program.config, program.weights)
        if target != "model":
            model = _on_device(model, target, shared=program.model is not None)
        device = str(model.embed.weight.device)
        return TorchExecutable(model, program.module, Report(self.name, device))

    def load(self, directory: Path) -> Executable:
        """Read a saved executable; it runs on the CPU."""
        report, _ = read_manifest(directory)
        return TorchExecutable(load_model(directory), read_module(directory), report)


def _on_device(model: Model, target: str, shared: bool) -> Model:
    """The model on another device: a copy when it is the caller's, who did not ask to move it."""
    try:
        device = torch.device(target)
    except RuntimeError as error:
        raise BackendError(f"backend 'torch': '{target}' is no torch device: {error}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BackendError(
            f"backend 'torch': target '{target}' needs a CUDA device, torch sees none"
        )
    if model.embed.weight.device == device:
        return model
    if shared:
        import copy

        model = copy.deepcopy(model)
    return model.to(device)
