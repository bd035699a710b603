"""Running the file: torch tensors are bound by address, outputs are allocated beforehand."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from seqmix.backend import Executable, Report
from seqmix.config import ModelConfig
from seqmix.dtypes import torch_dtype
from seqmix.errors import BackendError
from seqmix.interface import InputCheck, write_manifest, write_module
from seqmix_ir.dims import evaluate_size
from seqmix_ir.graph import Graph, Module
from seqmix_onnxruntime.emit import ONNX_DTYPES
from seqmix_onnxruntime.genai import GENAI, genai_config
from seqmix_onnxruntime.interface import Interface
from seqmix_onnxruntime.model_file import DATA, MODEL, STEP
from seqmix_onnxruntime.one_token import SIZES
from seqmix_onnxruntime.positions import check_past_positions

__all__ = ["CONFIG", "OnnxExecutable"]

CONFIG = "config.json"

_NOTHING = torch.zeros(1, device="cpu")
"""Where an empty tensor lies, which has no address of its own."""


class OnnxExecutable(Executable):
    """Sessions over a folder with ``model.onnx`` and maybe ``step.onnx``.

    ``module`` describes the graph with seqmix's names; ``interface`` maps them to the files'. A
    file is opened when it is first needed; the folder must stay as long as the executable.
    """

    def __init__(
        self,
        folder: Path,
        module: Module,
        interface: Interface,
        config: ModelConfig,
        report: Report,
        options: Mapping[str, Any],
    ) -> None:
        """Start the session for any length, which says whether ONNX Runtime takes the file."""
        self.folder = folder
        self._module = module
        self._interface = interface
        self._options = dict(options)
        self.config = config
        self.report = report
        self._has_step = (folder / STEP).is_file()
        self._sessions = {MODEL: _session(folder / MODEL, report.target, self._options)}
        self._checks = {graph.name: InputCheck(graph) for graph in module.graphs}
        self._outputs = {graph.name: _Outputs(graph, interface) for graph in module.graphs}

    @property
    def interface(self) -> Interface:
        """How names of the graph map to those of the file."""
        return self._interface

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the file once. Inputs are read in place where they are contiguous and on the CPU.

        Results lie on the CPU and are nobody else's. Raises BackendError for inputs that do not
        fit, or that ONNX Runtime refuses.
        """
        if graph not in self._checks:
            self._module.graph(graph)  # Says which graphs there are.
        sizes = self._checks[graph](inputs)
        given = {n: t.cpu() if t.device.type != "cpu" else t for n, t in inputs.items()}
        if self._interface.positions:
            self._check_ids(given["input_ids"])
        # These must live until the session is done: it knows their addresses only.
        bound = {
            name: tensor if tensor.is_contiguous() else tensor.contiguous()
            for name, tensor in self._bound_inputs(given).items()
        }
        try:
            results = self._results(graph, sizes, bound)
        except Exception as error:  # ONNX Runtime has one class per status and no common base.
            raise BackendError(f"graph '{graph}': ONNX Runtime failed: {error}") from error
        return {**results, **self._grown(given)}

    def _results(
        self, graph: str, sizes: Mapping[str, int], bound: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The outputs of the file, by seqmix's name."""
        session, outputs = self._session_for(sizes), self._outputs[graph]
        if self._sessions.get(STEP) == session and outputs.plain:
            # For one token the calls that bind every tensor cost more than what they save.
            arrays = {name: tensor.detach().numpy() for name, tensor in bound.items()}
            found = session.run(outputs.files, arrays)
            return dict(zip(outputs.names, map(torch.from_numpy, found), strict=True))
        binding = session.io_binding()
        for name, tensor in bound.items():
            _bind(binding.bind_input, name, tensor)
        results = outputs.allocated(sizes)
        for name, tensor in results.items():
            _bind(binding.bind_output, self._interface.outputs[name], tensor)
        session.run_with_iobinding(binding)
        return results

    def save(self, directory: Path | str) -> None:
        """Copy the file, its weights, and what ``load`` needs beside them."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        if directory.resolve() != self.folder.resolve():
            # Parts of another model must not lie beside a file that has none of its own.
            for name in (STEP, DATA):
                (directory / name).unlink(missing_ok=True)
            for name in (MODEL, STEP, DATA):
                if (self.folder / name).exists():
                    shutil.copy2(self.folder / name, directory / name)
        interface = dataclasses.asdict(self._interface)
        write_manifest(directory, self.report, options=self._options, interface=interface)
        write_module(directory, self._module)
        (directory / CONFIG).write_text(self.config.to_json(), encoding="utf-8")
        self._save_genai(directory)

    def _save_genai(self, directory: Path) -> None:
        """Write what onnxruntime-genai reads, for a model that it can run."""
        found = genai_config(self._module, self._interface, self.config)
        if found is None:
            (directory / GENAI).unlink(missing_ok=True)
            return
        text = json.dumps(found, indent=2)
        (directory / GENAI).write_text(f"{text}\n", encoding="utf-8")

    def _session_for(self, sizes: Mapping[str, int]) -> onnxruntime.InferenceSession:
        """The session of the file that is made for these sizes."""
        name = STEP if self._has_step and SIZES.items() <= sizes.items() else MODEL
        if name not in self._sessions:
            path = self.folder / name
            self._sessions[name] = _session(path, self.report.target, self._options)
        return self._sessions[name]

    def _bound_inputs(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors by the file's names."""
        known = self._interface.inputs
        bound = {known[name]: tensor for name, tensor in inputs.items() if name in known}
        if self._interface.positions:
            bound.update(self._mask(inputs))
        return bound

    def _check_ids(self, ids: Tensor) -> None:
        """BackendError that names an id out of range, which the session would not."""
        numbers = ids.numpy()  # A call of torch costs more than the work, for one token.
        low, high, size = int(numbers.min()), int(numbers.max()), self.config.vocab_size
        if low < 0 or high >= size:
            raise BackendError(
                f"input_ids should be in 0..{size - 1}, found {low if low < 0 else high}; padding "
                "has position -1, but a valid id"
            )

    def _mask(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What stands for the positions in the file."""
        positions = inputs["positions"]
        numbers = positions.numpy()
        mask = numbers >= 0
        if self._interface.grown:
            past = self._common_past(inputs)
            check_past_positions(past, positions, by_order=self._interface.by_order)
            mask = np.concatenate([past.numpy() >= 0, mask], axis=1)
        return {
            "attention_mask": torch.from_numpy(mask.astype(np.int64)),
            "position_ids": torch.from_numpy(np.maximum(numbers, 0)),
        }

    def _common_past(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The key positions of the past, which all layers must share: the file has one mask."""
        first, *rest = self._interface.grown
        past = inputs[first]
        for name in rest:
            other = inputs[name]
            if other.data_ptr() != past.data_ptr() and not torch.equal(other, past):
                raise BackendError(
                    f"'{name}' differs from '{first}'; an exported model has one mask for all "
                    "layers, so their key positions must be equal: pass states that one call gave"
                )
        return past

    def _grown(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The key positions that the file does not return, appended to: one tensor for all."""
        names = self._interface.grown
        if not names:
            return {}
        joined = torch.cat([inputs[names[0]], inputs["positions"]], dim=1)
        return dict.fromkeys(names, joined)


class _Outputs:
    """Where the outputs of a graph go: few of them have a shape of their own."""

    def __init__(self, graph: Graph, interface: Interface) -> None:
        """Those that the file has."""
        wanted = {name: v.type for name, v in graph.results.items() if name in interface.outputs}
        self.names = list(wanted)
        self.files = [interface.outputs[name] for name in wanted]
        """The names in the file, in the same order."""
        states = [value.type.dtype for value in graph.inputs.values()]
        self.plain = "bf16" not in {*states, *(type.dtype for type in wanted.values())}
        """Whether numpy knows the types of all that goes in and comes out."""
        self._shapes = list(dict.fromkeys(type.shape for type in wanted.values()))
        self._wanted = [
            (name, self._shapes.index(type.shape), torch_dtype(type.dtype))
            for name, type in wanted.items()
        ]

    def allocated(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Memory for each, by seqmix's name."""
        shapes = [[evaluate_size(s, sizes) for s in shape] for shape in self._shapes]
        return {name: torch.empty(shapes[i], dtype=dtype) for name, i, dtype in self._wanted}


def _session(path: Path, target: str, options: Mapping[str, Any]) -> onnxruntime.InferenceSession:
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
        return onnxruntime.InferenceSession(path, settings, providers=providers)
    except Exception as error:  # ONNX Runtime has one class per status and no common base.
        raise BackendError(f"{path}: ONNX Runtime refuses the file: {error}") from error


def _bind(bind: Callable[..., None], name: str, tensor: Tensor) -> None:
    """Give a tensor's memory to the session."""
    address = tensor.data_ptr() or _NOTHING.data_ptr()
    bind(name, "cpu", 0, _CODES[tensor.dtype], tensor.shape, address)


_CODES = {torch_dtype(name): code for name, code in ONNX_DTYPES.items()}
