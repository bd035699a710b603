"""A compiled model on a device: its weights lie there, states come and go as arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from seqmix.backend import Executable, Program, Report, Steps
from seqmix.inputs import InputCheck, resolved
from seqmix.interface import MANIFEST, write_manifest, write_module
from seqmix.model import initial_states
from seqmix.storage import write_model
from seqmix.whole_folder import whole_folder
from seqmix_ir.binding import bind_dims
from seqmix_ir.graph import Module
from seqmix_triton.codegen.generated import Generated
from seqmix_triton.rotary_pairs import pair_rotaries
from seqmix_triton.rules import all_rules
from seqmix_triton.run import Runner
from seqmix_triton.steps import make_steps

__all__ = ["TritonExecutable", "generate"]


def generate(module: Module) -> Generated:
    """The kernels of a legal module, and the module that runs them."""
    return Generated(pair_rotaries(module))


class TritonExecutable(Executable):
    """Runs the graphs of a program, groups of ops as one kernel; results lie on the device."""

    def __init__(self, program: Program, report: Report, device: torch.device) -> None:
        """Weights move to the device when an op first needs them."""
        self.config = program.config
        self.report = report
        self.device = device
        self._program = program
        self.generated = generate(program.module)
        graphs, wait = self.generated.module.graphs, device.type == "cpu"
        self.checks = {g.name: InputCheck(g, program.config, wait=wait) for g in graphs}
        """What the inputs of each graph must be; numbers on a GPU are not looked at."""
        rules = {**all_rules(), **self.generated.rules}
        self.runner = Runner(rules, program.weights.torch, device)

    @property
    def module(self) -> Module:
        """What is run."""
        return self._program.module

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run a graph; inputs move to the device where they are not there.

        Raises BackendError for inputs that do not fit, and for ids out of range that lie on a CPU.
        """
        definition = self.generated.module.graph(graph)
        self.checks[graph](inputs)
        plain = resolved(inputs)
        here = {name: plain[name].detach().to(self.device) for name in definition.inputs}
        sizes = bind_dims(definition, {name: tuple(t.shape) for name, t in here.items()})
        with torch.no_grad():
            results = self.runner.start(sizes).block(definition.block, tuple(here.values()))
        owned = _Owned([*here.values(), *self.runner.held()])
        return {
            name: owned.take(tensor)
            for name, tensor in zip(definition.outputs, results, strict=True)
        }

    def initial_state(self, batch: int) -> dict[str, Tensor]:
        """The states before the first token, on the device."""
        fresh = initial_states(self.config, batch)
        return {name: tensor.to(self.device) for name, tensor in fresh.items()}

    def steps(self, states: Mapping[str, Tensor]) -> Steps:
        """Single tokens in memory that stays in place, recorded as a CUDA graph on a device."""
        return make_steps(self, states)

    def save(self, directory: Path | str) -> None:
        """Write the module as text, the configuration and the weights."""
        with whole_folder(directory, MANIFEST) as folder:
            write_model(folder, self.config, self._program.weights)
            write_module(folder, self.module)
            write_manifest(folder, self.report)


class _Owned:
    """Results in memory of their own: no other result, no input and no weight lies there."""

    def __init__(self, taken: Iterable[Tensor]) -> None:
        self._taken = {tensor.untyped_storage().data_ptr() for tensor in taken}

    def take(self, tensor: Tensor) -> Tensor:
        """The tensor, or a copy; contiguous."""
        place = tensor.untyped_storage().data_ptr()
        if place in self._taken or not tensor.is_contiguous():
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        self._taken.add(tensor.untyped_storage().data_ptr())
        return tensor
