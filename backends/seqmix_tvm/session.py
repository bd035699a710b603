"""Running the library: torch tensors are passed as they are, results come back without copies."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqmix.backend import Executable, Report
from seqmix.config import ModelConfig
from seqmix.errors import BackendError
from seqmix.interface import MANIFEST as SAVED_MANIFEST
from seqmix.interface import MODULE_FILE, InputCheck, write_manifest, write_module
from seqmix_ir.graph import Module
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.compiled_model import TOKENIZER_FILES
from seqmix_tvm.folder import CONFIG, read_stored, seal
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
        self._checks = {graph.name: InputCheck(graph) for graph in module.graphs}
        self._entries = self._loaded()

    def _loaded(self) -> dict[str, tvm.Machine]:
        """The library of each graph, with its weights."""
        stored = read_stored(self.folder)
        return {
            name: tvm.Machine(self.folder / entry["library"], [stored[k] for k in entry["stored"]])
            for name, entry in self._manifest["entries"].items()
        }

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run a graph once. Inputs are read in place where they are contiguous and on the CPU.

        Raises BackendError for inputs that do not fit.
        """
        definition = self._module.graph(graph)
        self._checks[graph](inputs)
        self._check_ids(inputs)
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
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        if directory.resolve() != self.folder.resolve():
            for name in self._manifest["files"]:
                shutil.copy2(self.folder / name, directory / name)
        write_manifest(directory, self.report)
        write_module(directory, self._module)
        (directory / CONFIG).write_text(self.config.to_json(), encoding="utf-8")
        files = [*self._manifest["files"], SAVED_MANIFEST, MODULE_FILE, CONFIG]
        files += [name for name in TOKENIZER_FILES if (directory / name).is_file()]
        seal(directory, self._manifest, [*files, *write_scripts(directory, self._manifest)])

    def _placed(self, x: Tensor) -> Tensor:
        """An input where the library reads it."""
        return _on_cpu(x)

    def _check_ids(self, inputs: Mapping[str, Tensor]) -> None:
        """BackendError that names an id out of range: kernels do not look."""
        ids = inputs.get("input_ids")
        if ids is None or not ids.numel() or "positions" not in inputs:
            return
        low, high = (int(x) for x in torch.aminmax(ids))
        if low < 0 or high >= self.config.vocab_size:
            raise BackendError(
                f"input_ids should be in 0..{self.config.vocab_size - 1}, found "
                f"{low if low < 0 else high}; padding has position -1, but a valid id"
            )


def _on_cpu(x: Tensor) -> Tensor:
    """The numbers of a tensor, where they are already if they can stay; states are many."""
    return x.detach().cpu() if x.requires_grad or not x.is_cpu else x
