"""Running a library on a GPU; without one it can be looked at and saved."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from torch import Tensor

from seqmix.errors import BackendError
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.cuda.compiler import architecture_of, assembled
from seqmix_tvm.cuda.folder import binary_of, parameters_of, source_of
from seqmix_tvm.folder import MANIFEST, read_stored
from seqmix_tvm.session import TvmExecutable

__all__ = ["CudaExecutable"]


class CudaExecutable(TvmExecutable):
    """A folder for a GPU. Its library is loaded when it runs for the first time.

    Results, states among them, stay on the GPU; inputs are copied there where they are not.
    """

    def run(self, graph: str, inputs: Any) -> dict[str, Tensor]:
        """Run a graph once on the first GPU; BackendError where there is none that fits."""
        with self._loading:
            if not self._entries:
                self._entries = self._on_gpu()
        return super().run(graph, inputs)

    def _loaded(self) -> dict[str, tvm.Machine]:
        self._loading = Lock()
        return {}

    def _on_gpu(self) -> dict[str, tvm.Machine]:
        """The library of each graph, with kernels and weights on the GPU."""
        device = self._device()
        stored = {n: tvm.on_device(x, device) for n, x in read_stored(self.folder).items()}
        return {
            name: tvm.Machine(
                self.folder / entry["library"],
                self._weights(entry, stored),
                self._kernels(name),
                device,
            )
            for name, entry in self._manifest["entries"].items()
        }

    def _device(self) -> Any:
        """The first GPU; BackendError where there is none, or one of another architecture."""
        arch, found = architecture_of(self.report.target).removeprefix("sm_"), tvm.gpu()
        if found is None:
            raise BackendError(
                f"compiled for '{self.report.target}', and TVM finds no CUDA device here; save the "
                "folder and run it on a machine that has one, or compile for 'cpu'"
            )
        device, capability = found
        major, minor = (int(part) for part in capability.split("."))
        if major != int(arch[:-1]) or minor < int(arch[-1]):
            raise BackendError(
                f"compiled for '{self.report.target}', the GPU here has compute capability "
                f"{capability}; compile for 'cuda:{major}{minor}'"
            )
        return device

    def _kernels(self, name: str) -> Any:
        """The kernels of a graph as a module; they are assembled where they are source."""
        parameters = self._sealed(parameters_of(name)).read_text(encoding="utf-8")
        binary = self.folder / binary_of(name)
        if binary.name in self._manifest["files"]:
            return tvm.device_module(binary.read_bytes(), parameters)
        with TemporaryDirectory() as folder:
            made = Path(folder) / binary.name
            arch = architecture_of(self.report.target)
            assembled(self._sealed(source_of(name)), arch, made)
            return tvm.device_module(made.read_bytes(), parameters)

    def _sealed(self, name: str) -> Path:
        """A file whose checksum was looked at; BackendError for any other."""
        if name not in self._manifest["files"]:
            raise BackendError(
                f"{self.folder / MANIFEST}: names no sha256 of '{name}'; compile the model again"
            )
        return self.folder / name

    def _placed(self, x: Tensor) -> Tensor:
        return x.detach().cuda().resolve_neg()
