"""The backend ``inductor``: a graph of the IR, written for torch.fx and given to torch.compile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from seqmix import Availability, Backend, Executable, Program
from seqmix.backend import Report
from seqmix.errors import BackendError
from seqmix.interface import (
    MANIFEST,
    check_inputs,
    check_options,
    read_manifest,
    read_module,
    write_manifest,
    write_module,
)
from seqmix.storage import read_saved, write_model
from seqmix.whole_folder import whole_folder
from seqmix_ir.graph import Op
from torch import Tensor, fx

__all__ = ["InductorBackend"]

_OPTIONS = {"compiler": str}


class InductorBackend(Backend):
    """torch.compile on the CPU.

    Option ``compiler``: what torch.compile is to use, by default ``inductor``; ``aot_eager`` needs
    no C++ compiler. Nothing is kept in seqmix's cache: torch has one of its own.
    """

    name: ClassVar[str] = "inductor"
    cached: ClassVar[bool] = False
    automatic: ClassVar[bool] = False

    def probe(self) -> Availability:
        """Inductor writes C++ for a CPU, so it needs a compiler."""
        wanted = os.environ.get("CXX")
        names = [wanted] if wanted else ["g++", "clang++"]
        if any(shutil.which(name) for name in names):
            return Availability(("cpu",))
        return Availability((), f"no C++ compiler ({', '.join(names)}); install one, or set CXX")

    def supports(self, op: Op, target: str) -> str | None:
        """Whether torch has a function for the op, or a package has bound it to torch."""
        from seqmix_mingru.fx_graph import missing_form

        return missing_form(op)

    def compile(self, program: Program, target: str, options: Mapping[str, Any]) -> Executable:
        """Write the graphs; torch compiles each when it first runs."""
        check_options(self.name, options, _OPTIONS)
        if target != "cpu":
            raise BackendError(f"backend 'inductor' has no target '{target}'; known: cpu")
        return _Compiled(
            program, Report(self.name, target), str(options.get("compiler", self.name))
        )

    def load(self, directory: Path) -> Executable:
        """Read a saved folder; torch compiles it again."""
        report, manifest = read_manifest(directory)
        config, weights = read_saved(directory)
        program = Program(read_module(directory), weights, config)
        return _Compiled(program, report, str(manifest.get("compiler", self.name)))


class _Compiled(Executable):
    """The graphs of a program, each behind torch.compile."""

    def __init__(self, program: Program, report: Report, compiler: str) -> None:
        self.config = program.config
        self.report = report
        self._program = program
        self._compiler = compiler
        self._made: dict[str, Any] = {}

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run a graph on torch tensors by name."""
        definition = self._program.module.graph(graph)
        check_inputs(definition, inputs)
        given = [inputs[name].detach() for name in definition.inputs]
        with torch.no_grad():
            results = self._function(graph)(*given)
        return dict(zip(definition.outputs, _owned(results, given), strict=True))

    def save(self, directory: Path | str) -> None:
        """Write the graph as text, the configuration and the weights."""
        with whole_folder(directory, MANIFEST) as folder:
            write_model(folder, self.config, self._program.weights)
            write_module(folder, self._program.module)
            write_manifest(folder, self.report, compiler=self._compiler)

    def _function(self, graph: str) -> Any:
        if graph not in self._made:
            from seqmix_mingru.fx_graph import write_graph

            definition = self._program.module.graph(graph)
            written: fx.GraphModule = write_graph(definition, self._program.weights.torch)
            self._made[graph] = torch.compile(written, backend=self._compiler, dynamic=True)
        return self._made[graph]


def _owned(results: tuple[Tensor, ...], given: list[Tensor]) -> list[Tensor]:
    """Results that share memory with no argument and with no other result."""
    taken = {tensor.untyped_storage().data_ptr() for tensor in given}
    out = []
    for tensor in results:
        if tensor.untyped_storage().data_ptr() in taken:
            tensor = tensor.clone()
        taken.add(tensor.untyped_storage().data_ptr())
        out.append(tensor.contiguous())
    return out
