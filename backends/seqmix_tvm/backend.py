"""The tvm backend: the graph becomes Relax and TIR, and the result is one shared library."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar
from weakref import finalize

from seqmix.backend import Availability, Backend, Executable, Program, Report
from seqmix.config import ModelConfig, read_config
from seqmix.errors import BackendError, did_you_mean
from seqmix.interface import check_options, read_manifest, read_module, saved_file
from seqmix.whole_file import writing
from seqmix_ir.graph import Module, Op

__all__ = ["TvmBackend"]

_OPTIONS: dict[str, type] = {"mcpu": str, "weights": str, "runtime": bool}

_WEIGHTS = ("model", "bf16", "f16", "int8")

PREFERENCES: Mapping[str, tuple[str, ...]] = {
    "linear_attention": ("chunkwise",),
    "long_conv": ("four_step",),
    "selected_attention": ("gathered",),
}
"""Per op without a kernel: the forms in simpler ops that run fastest, best first."""

_TARGETS = ("cpu",)


class TvmBackend(Backend):
    """Compiles for the CPU with LLVM, or for an NVIDIA GPU with nvcc.

    The target of a GPU names its compute capability: ``cuda:80``, ``cuda:90``. Compiling for one
    needs none; ``report.resources`` tells what each kernel takes up. Without nvcc the folder has
    the source of the kernels, and is finished where it runs.

    Options:

    - ``mcpu``: LLVM's name of the processor to compile for; by default that of this machine.
    - ``weights``: the type in which matrices lie in memory, ``bf16``, ``f16``, or ``int8`` with a
      scale per output channel; by default that of the model. Sums are float32 in any case. What
      the rounding costs is in ``report.notes``, and per weight in ``manifest.json``.
    - ``runtime``: put TVM's runtime, 3 MB, into the folder: to run it, apache-tvm-ffi is enough.
    """

    name: ClassVar[str] = "tvm"
    version: ClassVar[str] = "1"
    automatic: ClassVar[bool] = False

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        """The backend with its options; BackendError for unknown ones."""
        _check_options(options or {})
        self._options = dict(options or {})

    def configured(self, options: Mapping[str, Any]) -> Backend:
        """The backend with these options."""
        return TvmBackend(options)

    def probe(self) -> Availability:
        """Whether the package is here, and knows LLVM."""
        try:
            import tvm
        except ImportError as error:
            return Availability((), f"{error}; pip install 'seqmix[tvm]'")
        if not hasattr(tvm, "tirx"):
            found = getattr(tvm, "__version__", "of another project")
            return Availability((), f"tvm {found} has no tirx; pip install 'seqmix[tvm]'")
        return Availability(_TARGETS)

    def supports(self, op: Op, target: str) -> str | None:
        """Whether there is a rule or a kernel for the op."""
        from seqmix_tvm.kernels import missing_kernel

        return missing_kernel(op)

    def preferences(self, op: Op, target: str) -> tuple[str, ...]:
        """The forms in simpler ops that run fastest."""
        return PREFERENCES.get(op.name, ())

    def compile(self, program: Program, target: str, options: Mapping[str, Any]) -> Executable:
        """Compile each graph to a library in a temporary folder, and load it."""
        from seqmix_tvm.build import build_folder

        _check_options(options)
        _check_target(target)
        folder = Path(mkdtemp(prefix="seqmix-tvm-"))
        try:
            report = Report(self.name, target)
            with writing(folder):
                manifest = build_folder(folder, program, options, report)
            executable = _opened(folder, program.module, program.config, report, manifest)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finalize(executable, shutil.rmtree, folder, ignore_errors=True)
        return executable

    def load(self, directory: Path) -> Executable:
        """Load a saved folder; BackendError when it is damaged or of another version."""
        from seqmix_tvm.folder import CONFIG, check_entries, read_folder

        report, _ = read_manifest(directory)
        _check_target(report.target)
        manifest = read_folder(directory)
        module, config = read_module(directory), read_config(saved_file(directory, CONFIG))
        check_entries(directory, manifest, module)
        return _opened(directory, module, config, report, manifest)


def _opened(
    folder: Path,
    module: Module,
    config: ModelConfig,
    report: Report,
    manifest: Mapping[str, Any],
) -> Executable:
    """The executable of a folder, by its target."""
    from seqmix_tvm.cuda.session import CudaExecutable
    from seqmix_tvm.session import TvmExecutable

    made = TvmExecutable if report.target in _TARGETS else CudaExecutable
    return made(folder, module, config, report, manifest)


def _check_target(target: str) -> None:
    """BackendError for a target that is neither the CPU nor a GPU that is known."""
    from seqmix_tvm.cuda.compiler import architecture_of

    if target not in _TARGETS:
        architecture_of(target)


def _check_options(options: Mapping[str, Any]) -> None:
    check_options(TvmBackend.name, options, _OPTIONS)
    kind = options.get("weights", "model")
    if kind not in _WEIGHTS:
        raise BackendError(
            f"backend 'tvm': option 'weights' should be one of {', '.join(_WEIGHTS)}, found "
            f"{kind!r}{did_you_mean(kind, _WEIGHTS)}"
        )
