"""The triton backend: graphs run op by op, mixers and norms by the kernels of this package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from seqmix.backend import Availability, Backend, Executable, Program, Report
from seqmix.errors import BackendError
from seqmix.interface import check_options, read_manifest, read_module
from seqmix.storage import read_saved
from seqmix_ir.graph import Block, Module, Op

if TYPE_CHECKING:
    from seqmix_triton.session import TritonExecutable

__all__ = ["TritonBackend"]


class TritonBackend(Backend):
    """CUDA and HIP devices (target ``cuda``); the CPU in Triton's interpreter, for tests.

    Groups of elementwise ops and of reductions run as one generated kernel each, and so do loops
    along the sequence. The option ``save_kernels`` names a folder for their source. A saved folder
    holds the module and the weights: kernels are compiled by Triton when they first run, and kept
    in its own cache.
    """

    name: ClassVar[str] = "triton"
    version: ClassVar[str] = "1"
    cached: ClassVar[bool] = False
    automatic: ClassVar[bool] = False

    def probe(self) -> Availability:
        """Whether Triton, a device, its driver and a C compiler are here."""
        from seqmix_triton.probe import probe

        return probe()

    def supports(self, op: Op, target: str) -> str | None:
        """Whether there is a rule for the op, here or in a plugin's ``triton:<op>``."""
        from seqmix_triton.rules import missing_rule

        return missing_rule(op)

    def default_target(self) -> str:
        """The device; the CPU in the interpreter."""
        return next(iter(self.probe().devices), "cuda")

    def compile(self, program: Program, target: str, options: Mapping[str, Any]) -> Executable:
        """Bind the program to a device; BackendError where there is none."""
        check_options(self.name, options, {"save_kernels": str})
        executable = self._executable(program, Report(self.name, target))
        if folder := options.get("save_kernels"):
            executable.generated.save(Path(folder))
        return executable

    def describe(self, module: Module, save_kernels: Path | None = None) -> list[str]:
        """What is fused and why not, and how every loop runs; needs no device."""
        from seqmix_triton.session import generate

        generated = generate(module)
        if save_kernels is not None:
            generated.save(save_kernels)
        return generated.notes()

    def load(self, directory: Path) -> Executable:
        """Read a saved folder, for the device that it was compiled for."""
        report, _ = read_manifest(directory)
        config, weights = read_saved(directory)
        program = Program(read_module(directory), weights, config)
        return self._executable(program, Report(self.name, report.target))

    def _executable(self, program: Program, report: Report) -> TritonExecutable:
        from seqmix_triton.session import TritonExecutable

        device = self._device(report.target)
        for graph in program.module.graphs:
            _count_kernels(graph.block, report.kernels)
        executable = TritonExecutable(program, report, device)
        report.kernels.update(executable.generated.uses)
        report.notes.extend(executable.generated.notes())
        return executable

    def _device(self, target: str) -> torch.device:
        """The torch device of a target: ``cuda``, ``cuda:1`` .., or ``cpu``."""
        known = self.probe()
        if not known:
            raise BackendError(f"backend 'triton' cannot run here: {known.reason}")
        kind = target.partition(":")[0]
        if kind not in known.devices:
            raise BackendError(
                f"backend 'triton' has no target '{target}' here; known: {', '.join(known.devices)}"
            )
        try:
            return torch.device(target)
        except RuntimeError as error:
            raise BackendError(f"backend 'triton': '{target}' is no device: {error}") from error


def _count_kernels(block: Block, counts: dict[str, int]) -> None:
    """Add the ops of a block that run as Triton kernels, in bodies too."""
    from seqmix_triton.rules import kernel_names

    names = kernel_names()
    for op in block.walk():
        if op.name in names:
            counts[op.name] = counts.get(op.name, 0) + 1
