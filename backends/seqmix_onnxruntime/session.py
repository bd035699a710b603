"""Running the file: torch tensors are bound by address, outputs are allocated beforehand."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from seqmix.backend import Executable, Report
from seqmix.config import ModelConfig
from seqmix.dtypes import torch_dtype
from seqmix.errors import BackendError
from seqmix.inputs import resolved
from seqmix.interface import MANIFEST, InputCheck, write_manifest, write_module
from seqmix.whole_file import write_whole
from seqmix.whole_folder import mark_of, whole_folder
from seqmix_ir.dims import evaluate_size
from seqmix_ir.graph import Graph, Module
from seqmix_onnxruntime.emit import ONNX_DTYPES
from seqmix_onnxruntime.folder import check_session
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
        self._opening = Lock()
        self._mark = mark_of(folder / MODEL)
        self._sessions = {MODEL: self._opened(MODEL)}
        self._checks = {g.name: InputCheck(g, config, wait=True) for g in module.graphs}
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
        given = {n: t if t.is_cpu else t.cpu() for n, t in resolved(inputs).items()}
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
        # Parts of another model must not lie beside a file that has none of its own.
        with whole_folder(directory, MANIFEST, replaces=(STEP, DATA, GENAI)) as folder:
            for name in (MODEL, STEP, DATA):
                if (self.folder / name).exists():
                    shutil.copy2(self.folder / name, folder / name)
            write_module(folder, self._module)
            write_whole(folder / CONFIG, self.config.to_json())
            self._save_genai(folder)
            interface = dataclasses.asdict(self._interface)
            write_manifest(folder, self.report, options=self._options, interface=interface)
        if Path(directory).resolve() == self.folder.resolve():
            self._mark = mark_of(self.folder / MODEL)  # The same model, in new files.

    def _save_genai(self, directory: Path) -> None:
        """Write what onnxruntime-genai reads, for a model that it can run."""
        found = genai_config(self._module, self._interface, self.config)
        if found is not None:
            write_whole(directory / GENAI, json.dumps(found, indent=2) + "\n")

    def _session_for(self, sizes: Mapping[str, int]) -> onnxruntime.InferenceSession:
        """The session of the file that is made for these sizes."""
        name = STEP if self._has_step and SIZES.items() <= sizes.items() else MODEL
        with self._opening:
            if name not in self._sessions:
                self._refuse_replaced()
                self._sessions[name] = self._opened(name)
        return self._sessions[name]

    def _refuse_replaced(self) -> None:
        """BackendError where the folder holds another model by now."""
        if mark_of(self.folder / MODEL) != self._mark:
            raise BackendError(
                f"{self.folder}: was replaced since it was loaded, and files of two models would "
                "be mixed; load it again"
            )

    def _opened(self, name: str) -> onnxruntime.InferenceSession:
        """The session of a file, which takes and gives what the graph says."""
        path = self.folder / name
        session = _session(path, self.report.target, self._options)
        for graph in self._module.graphs:
            check_session(path, session, self._interface, graph)
        return session

    def _bound_inputs(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors by the file's names."""
        known = self._interface.inputs
        bound = {known[name]: tensor for name, tensor in inputs.items() if name in known}
        if self._interface.positions:
            bound.update(self._mask(inputs))
        return bound

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
