"""Running the library: torch tensors are passed as they are, results come back without copies."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from seqmix.backend import Executable, Report
from seqmix.config import ModelConfig
from seqmix.errors import BackendError
from seqmix.interface import MANIFEST as SAVED_MANIFEST
from seqmix.interface import MODULE_FILE, InputCheck, write_manifest, write_module
from seqmix.whole_file import write_whole
from seqmix.whole_folder import whole_folder
from seqmix_ir.graph import Module
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.compiled_model import TOKENIZER_FILES
from seqmix_tvm.folder import CONFIG, WEIGHTS, read_stored, seal
from seqmix_tvm.scripts import write_scripts

__all__ = ["TvmExecutable"]


class TvmExecutable(Executable):
    """A loaded folder: the library, and the weights that lie in memory as its kernels read them."""

    def __init__(
        self,
        folder: Path,
        module: Module,
        config: ModelConfig,
        report: Report,
        manifest: Mapping[str, Any],
    ) -> None:
        """Load the library and its weights; the folder must stay as long as the executable."""
        self.folder = folder
        self.config = config
        self.report = report
        self._module = module
        self._manifest = dict(manifest)
        wait = report.target == "cpu"
        self._checks = {g.name: InputCheck(g, config, wait=wait) for g in module.graphs}
        self._entries = self._loaded()

    def _loaded(self) -> dict[str, tvm.Machine]:
        """The library of each graph, with its weights."""
        stored = read_stored(self.folder)
        return {
            name: tvm.Machine(self.folder / entry["library"], self._weights(entry, stored))
            for name, entry in self._manifest["entries"].items()
        }

    def _weights(self, entry: Mapping[str, Any], stored: Mapping[str, Any]) -> list[Any]:
        """Those that a library reads, in its order; BackendError for one that is not there."""
        if missing := [name for name in entry["stored"] if name not in stored]:
            raise BackendError(
                f"{self.folder / WEIGHTS}: has no tensor '{missing[0]}'; compile the model again"
            )
        return [stored[name] for name in entry["stored"]]

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run a graph once. Inputs are read in place where they are contiguous and on the CPU.

        Raises BackendError for inputs that do not fit.
        """
        definition = self._module.graph(graph)
        self._checks[graph](inputs)
        given = [self._placed(inputs[name]) for name in definition.inputs]
        try:
            results = self._entries[graph].run("main", given)
        except Exception as error:  # TVM has many classes of errors and no common base.
            raise BackendError(f"graph '{graph}': TVM failed: {error}") from error
        return dict(zip(definition.outputs, results, strict=True))

    def save(self, directory: Path | str) -> None:
        """Copy the folder, and write what ``load`` needs beside it, and ``run.py`` for no torch.

        The files of a tokenizer that lie in the directory already become part of it.
        """
        there = [name for name in TOKENIZER_FILES if (Path(directory) / name).is_file()]
        with whole_folder(directory, SAVED_MANIFEST) as folder:
            for name in self._manifest["files"]:
                shutil.copy2(self.folder / name, folder / name)
            for name in there:
                shutil.copy2(Path(directory) / name, folder / name)
            write_manifest(folder, self.report)
            write_module(folder, self._module)
            write_whole(folder / CONFIG, self.config.to_json())
            files = [*self._manifest["files"], SAVED_MANIFEST, MODULE_FILE, CONFIG, *there]
            seal(folder, self._manifest, [*files, *write_scripts(folder, self._manifest)])

    def _placed(self, x: Tensor) -> Tensor:
        """An input where the library reads it."""
        return _on_cpu(x)


def _on_cpu(x: Tensor) -> Tensor:
    """The numbers of a tensor, where they are already if they can stay; states are many."""
    plain = x.is_cpu and not x.requires_grad and not x.is_neg()
    return x if plain else x.detach().cpu().resolve_neg()
