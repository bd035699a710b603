"""Running the file: torch tensors are bound by address, outputs are allocated beforehand."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnxruntime
import torch
from torch import Tensor

from seqmix.backend import Executable, Report
from seqmix.config import ModelConfig
from seqmix.dtypes import torch_dtype
from seqmix.errors import BackendError
from seqmix.interface import check_inputs, write_manifest, write_module
from seqmix_ir.dims import evaluate_size
from seqmix_ir.graph import Graph, Module
from seqmix_onnxruntime.emit import ONNX_DTYPES
from seqmix_onnxruntime.interface import Interface

__all__ = ["OnnxExecutable"]


class OnnxExecutable(Executable):
    """A session over a folder with ``model.onnx``.

    ``module`` describes the graph with seqmix's names; ``interface`` maps them to the file's.
    """

    def __init__(
        self,
        folder: Path | TemporaryDirectory[str],
        module: Module,
        interface: Interface,
        config: ModelConfig,
        report: Report,
        options: Mapping[str, Any],
    ) -> None:
        """Start the session; a temporary folder lives as long as the executable."""
        self._folder = folder
        self._module = module
        self._interface = interface
        self._options = dict(options)
        self.config = config
        self.report = report
        self._session = _session(self.folder, report.target, self._options)

    @property
    def folder(self) -> Path:
        """Where the file lies."""
        return Path(self._folder if isinstance(self._folder, Path) else self._folder.name)

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the file once; inputs and outputs are CPU tensors, contiguous ones without a copy."""
        definition = self._module.graph(graph)
        sizes = check_inputs(definition, inputs)
        bound = {name: tensor.contiguous() for name, tensor in self._bound_inputs(inputs).items()}
        binding = self._session.io_binding()
        for name, tensor in bound.items():
            _bind(binding.bind_input, name, tensor)
        results = self._allocate(definition, sizes)
        for name, tensor in results.items():
            _bind(binding.bind_output, self._interface.outputs[name], tensor)
        self._session.run_with_iobinding(binding)
        return {**results, **self._grown(inputs)}

    def save(self, directory: Path) -> None:
        """Copy the file, its weights, and what ``load`` needs beside them."""
        directory.mkdir(parents=True, exist_ok=True)
        if directory.resolve() != self.folder.resolve():
            for file in self.folder.iterdir():
                if file.name.startswith("model.onnx"):
                    shutil.copy2(file, directory / file.name)
        write_manifest(
            directory, self.report, options=self._options, interface=vars(self._interface)
        )
        write_module(directory, self._module)
        (directory / "config.json").write_text(self.config.to_json(), encoding="utf-8")

    def _bound_inputs(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors by the file's names."""
        known = self._interface.inputs
        bound = {known[name]: tensor for name, tensor in inputs.items() if name in known}
        if self._interface.positions:
            positions = inputs["positions"]
            mask = positions >= 0
            if self._interface.grown:
                mask = torch.cat([inputs[self._interface.grown[0]] >= 0, mask], dim=1)
            bound["attention_mask"] = mask.to(torch.int64)
            bound["position_ids"] = positions.clamp(min=0)
        return bound

    def _allocate(self, graph: Graph, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Memory for every output of the file, by seqmix's name."""
        return {
            name: torch.empty(
                [evaluate_size(s, sizes) for s in value.type.shape],
                dtype=torch_dtype(value.type.dtype),
            )
            for name, value in graph.results.items()
            if name in self._interface.outputs
        }

    def _grown(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The key positions that the file does not return, appended to."""
        after: dict[str, Tensor] = {}
        joined: Tensor | None = None
        for name in self._interface.grown:
            if joined is None:
                joined = torch.cat([inputs[name], inputs["positions"]], dim=1)
            after[name] = joined
        return after


def _session(folder: Path, target: str, options: Mapping[str, Any]) -> onnxruntime.InferenceSession:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    if threads := options.get("threads"):
        settings.intra_op_num_threads = threads
    # Threads that spin between operators slow down everything else on the machine.
    spin = "1" if options.get("spin", False) else "0"
    settings.add_session_config_entry("session.intra_op.allow_spinning", spin)
    providers = ["CPUExecutionProvider"]
    if target == "cuda":
        providers.insert(0, "CUDAExecutionProvider")
    try:
        return onnxruntime.InferenceSession(folder / "model.onnx", settings, providers=providers)
    except Exception as error:  # ONNX Runtime has one class per status and no common base.
        raise BackendError(f"{folder}: ONNX Runtime refuses the file: {error}") from error


def _bind(bind: Any, name: str, tensor: Tensor) -> None:
    """Give a tensor's memory to the session; an empty one needs an address all the same."""
    address = tensor.data_ptr() or _NOTHING.data_ptr()
    dtype = ONNX_DTYPES[_dtype_of(tensor)]
    bind(name, "cpu", 0, dtype, list(tensor.shape), address)


def _dtype_of(tensor: Tensor) -> Any:
    from seqmix.dtypes import dtype_name

    return dtype_name(tensor.dtype)


_NOTHING = torch.zeros(1)
