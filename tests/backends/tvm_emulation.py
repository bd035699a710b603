"""The tvm backend for CUDA, with the source of its kernels run on the CPU thread by thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tests.backends.cuda_emulation import COMPILER, emulated
from tests.backends.graphs import program_for

from seqmix.backend import Executable
from seqmix_ir.defn import Array
from seqmix_ir.graph import Module
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.backend import TvmBackend
from seqmix_tvm.cuda import folder as files
from seqmix_tvm.cuda.session import CudaExecutable
from seqmix_tvm.folder import read_stored

__all__ = ["COMPILER", "TARGET", "emulated_module", "emulation"]

TARGET = "cuda:90"


@contextmanager
def emulation() -> Iterator[None]:
    """Inside, the backend compiles for a GPU by default, assembles nothing, and runs anyway."""
    with (
        patch.object(TvmBackend, "default_target", lambda self: TARGET),
        patch.object(files, "nvcc", lambda: None),
        patch.object(CudaExecutable, "_on_gpu", _on_cpu),
        patch.object(CudaExecutable, "_placed", lambda self, x: x.detach()),
    ):
        yield


def emulated_module(module: Module, weights: Mapping[str, Array] | None = None) -> Executable:
    """A module, compiled for a GPU, as it can be run inside of :func:`emulation`."""
    backend = TvmBackend()
    return backend.compile(program_for(backend, module, weights), TARGET, {})


def _on_cpu(executable: Any) -> dict[str, tvm.Machine]:
    folder, stored, made = executable.folder, read_stored(executable.folder), {}
    for name, entry in executable._manifest["entries"].items():
        text = (folder / files.source_of(name)).read_text(encoding="utf-8")
        parameters = (folder / files.parameters_of(name)).read_text(encoding="utf-8")
        weights = [stored[key] for key in entry["stored"]]
        kernels = emulated(text, parameters, folder)
        made[name] = tvm.Machine(folder / entry["library"], weights, kernels)
    return made
