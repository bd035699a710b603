"""The reference backend: the numpy interpreter, which runs every op by its definition."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from seqmix.backend import Availability, Backend, Executable, Program, Report
from seqmix.errors import BackendError
from seqmix.inputs import resolved
from seqmix.interface import (
    MANIFEST,
    InputCheck,
    check_options,
    read_manifest,
    read_module,
    write_manifest,
    write_module,
)
from seqmix.storage import read_saved, write_model
from seqmix.weights import to_numpy, to_torch
from seqmix.whole_folder import whole_folder
from seqmix_ir.graph import Op
from seqmix_ir.interpret import Interpreter

__all__ = ["ReferenceBackend", "ReferenceExecutable"]


class ReferenceExecutable(Executable):
    """Interprets a module. As the judge it carries every float as float64."""

    def __init__(self, program: Program, report: Report, judge: bool) -> None:
        """Nothing is computed before the first run."""
        self.config = program.config
        self.report = report
        self.judge = judge
        self._program = program
        self._checks = {
            graph.name: InputCheck(graph, program.config, any_float=judge, wait=True)
            for graph in program.module.graphs
        }
        self._interpreter = Interpreter(program.module, program.weights.numpy, judge=judge)

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Interpret a graph; the judge takes and gives float64 for every float."""
        self._program.module.graph(graph)  # Says which graphs there are.
        self._checks[graph](inputs)
        arrays = {name: to_numpy(tensor) for name, tensor in resolved(inputs).items()}
        results = self._interpreter.run(graph, arrays)
        return {name: to_torch(array) for name, array in results.items()}

    def save(self, directory: Path | str) -> None:
        """Write the module as text, the configuration and the weights."""
        with whole_folder(directory, MANIFEST) as folder:
            write_model(folder, self.config, self._program.weights)
            write_module(folder, self._program.module)
            write_manifest(folder, self.report, judge=self.judge)


class ReferenceBackend(Backend):
    """Slow and exact. The option ``judge`` (bool) widens every float to float64."""

    name: ClassVar[str] = "reference"
    cached: ClassVar[bool] = False
    automatic: ClassVar[bool] = False

    def probe(self) -> Availability:
        """It runs everywhere."""
        return Availability(("cpu",))

    def supports(self, op: Op, target: str) -> str | None:
        """Every op has a definition."""
        return None

    def compile(self, program: Program, target: str, options: Mapping[str, Any]) -> Executable:
        """Wrap the program; there is nothing to compile."""
        check_target(self.name, target)
        check_options(self.name, options, {"judge": bool})
        report = Report(self.name, target)
        return ReferenceExecutable(program, report, bool(options.get("judge", False)))

    def load(self, directory: Path) -> Executable:
        """Read a saved executable."""
        report, manifest = read_manifest(directory)
        config, weights = read_saved(directory)
        program = Program(read_module(directory), weights, config)
        return ReferenceExecutable(program, report, bool(manifest["judge"]))


def check_target(backend: str, target: str, known: tuple[str, ...] = ("cpu",)) -> None:
    """BackendError for a target that is not among the known ones."""
    if target not in known:
        raise BackendError(
            f"backend '{backend}' has no target '{target}'; known: {', '.join(known)}"
        )
