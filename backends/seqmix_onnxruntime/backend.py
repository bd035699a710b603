"""The onnxruntime backend: the graph becomes an ONNX file that ONNX Runtime runs."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import finalize

from seqmix.backend import Availability, Backend, Executable, Program, Report
from seqmix.config import ModelConfig, read_config
from seqmix.errors import BackendError, did_you_mean
from seqmix.interface import MANIFEST, check_options, read_manifest, read_module, saved_file
from seqmix.model import state_specs
from seqmix.whole_file import writing
from seqmix_ir.graph import Graph, Module, Op
from seqmix_ir.passes import cse, dce
from seqmix_onnxruntime.kernels import PREFERENCES, missing_kernel

if TYPE_CHECKING:
    from seqmix_onnxruntime.interface import Interface
    from seqmix_onnxruntime.model_file import Made

__all__ = ["OnnxRuntimeBackend"]

_OPTIONS: dict[str, type] = {
    "threads": int,
    "external_data_threshold": int,
    "spin": bool,
    "opset": int,
    "contrib": bool,
    "step": bool,
    "weights": str,
}
_WEIGHTS = ("model", "int8", "int4")
_THRESHOLD = 1_500_000_000
_MOST_THREADS = 1024
"""Of one operator: each is started, and no machine has so many cores."""


class OnnxRuntimeBackend(Backend):
    """Runs on the CPU, and on CUDA with onnxruntime-gpu.

    Options:

    - ``threads``: of one operator; by default all cores.
    - ``external_data_threshold``: bytes of weights from which they get a file of their own.
    - ``spin``: let idle threads spin; a little faster alone, much slower beside other work.
    - ``opset``: of the standard domain, 18 to 27; what it lacks is written in simpler operators.
    - ``contrib``: whether operators of ONNX Runtime's own domain may be used; a file without them
      runs in any ONNX runtime.
    - ``step``: whether there is a second file for one token at a time, ``step.onnx``, which runs
      faster and shares the weights on disk. It is opened when it is first used, and then holds
      its weights in memory again. By default there is one where ``contrib`` is on.
    - ``weights``: ``int8`` or ``int4`` for matrices in blocks of 32 with a scale and a zero point
      each, which operators of ONNX Runtime's own domain read; by default those of the model. What
      the rounding costs is in ``report.notes``.
    """

    name: ClassVar[str] = "onnxruntime"
    version: ClassVar[str] = "3"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        """The backend with its options; BackendError for unknown ones."""
        _check_options(options or {})
        self._options = dict(options or {})

    def configured(self, options: Mapping[str, Any]) -> Backend:
        """What can run depends on ``opset`` and ``contrib``."""
        return OnnxRuntimeBackend(options)

    def probe(self) -> Availability:
        """The devices of the installed ONNX Runtime."""
        try:
            import onnx  # noqa: F401  # the export needs it
            import onnxruntime
        except ImportError as error:
            return Availability((), f"{error}; pip install 'seqmix[onnxruntime]'")
        providers = onnxruntime.get_available_providers()
        cuda = ("cuda",) if "CUDAExecutionProvider" in providers else ()
        return Availability((*cuda, "cpu"))

    def supports(self, op: Op, target: str) -> str | None:
        """Whether there is an ONNX form of the op for its element types."""
        from seqmix_onnxruntime.ops import has_emitter

        if not has_emitter(op.name):
            return f"ONNX has no operator for '{op.name}'"
        from seqmix_onnxruntime.form import form_of, too_new

        return too_new(op, form_of(self._options)) or _refusal(op)

    def preferences(self, op: Op, target: str) -> tuple[str, ...]:
        """The forms in simpler ops that run fastest."""
        return PREFERENCES.get(op.name, ())

    def thread_options(self, threads: int) -> dict[str, Any]:
        """A session has threads of its own."""
        return {"threads": threads}

    def compile(self, program: Program, target: str, options: Mapping[str, Any]) -> Executable:
        """Write the file to a temporary folder and start a session on it."""
        from seqmix_onnxruntime.form import form_of
        from seqmix_onnxruntime.model_file import MODEL, make_model, write_models
        from seqmix_onnxruntime.session import OnnxExecutable

        _check_options(options)
        form = form_of(options, target)
        self._check_target(target)
        graphs, interface = _graphs(program, step=options.get("step", form.contrib))
        metadata = _metadata(program.config, interface)
        files = {
            name: make_model(graph, interface, program.weights, metadata, form)
            for name, graph in graphs.items()
        }
        report = Report(self.name, target)
        if (kind := options.get("weights", "model")) != "model":
            files = _with_smaller_weights(files, kind, report)
        folder = Path(mkdtemp(prefix="seqmix-onnx-"))
        try:
            report.kernels = dict(Counter(node.op_type for node in files[MODEL].model.graph.node))
            threshold = options.get("external_data_threshold", _THRESHOLD)
            with writing(folder):
                report.bytes = write_models(files, folder, threshold)
            described = (program.module, interface, program.config, report, options)
            executable = OnnxExecutable(folder, *described)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finalize(executable, shutil.rmtree, folder, ignore_errors=True)
        return executable

    def load(self, directory: Path) -> Executable:
        """Start a session on a saved folder; BackendError when it is incomplete."""
        from seqmix_onnxruntime.folder import check_files, read_interface
        from seqmix_onnxruntime.session import CONFIG, OnnxExecutable

        report, manifest = read_manifest(directory)
        self._check_target(report.target)
        options = manifest.get("options")
        if not isinstance(options, dict):
            raise BackendError(
                f"{directory / MANIFEST}: 'options' is missing or broken; compile the model again"
            )
        _check_options(options)
        module, config = read_module(directory), read_config(saved_file(directory, CONFIG))
        interface = read_interface(directory, manifest.get("interface"), _only_graph(module))
        check_files(directory)
        return OnnxExecutable(directory, module, interface, config, report, options)

    def _check_target(self, target: str) -> None:
        devices = self.probe().devices
        if target not in devices:
            raise BackendError(
                f"backend 'onnxruntime' has no target '{target}' here; available: "
                f"{', '.join(devices)}"
            )


def _check_options(options: Mapping[str, Any]) -> None:
    check_options(OnnxRuntimeBackend.name, options, _OPTIONS)
    if not 0 <= (threads := options.get("threads", 0)) <= _MOST_THREADS:
        raise BackendError(
            f"backend 'onnxruntime': option 'threads' should be in 0..{_MOST_THREADS}, found "
            f"{threads}"
        )
    kind = options.get("weights", "model")
    if kind not in _WEIGHTS:
        raise BackendError(
            f"backend 'onnxruntime': option 'weights' should be one of {', '.join(_WEIGHTS)}, "
            f"found {kind!r}{did_you_mean(kind, _WEIGHTS)}"
        )


def _with_smaller_weights(files: dict[str, Made], kind: str, report: Report) -> dict[str, Made]:
    """The files with packed weights, and what that costs, which the report says."""
    from seqmix_onnxruntime.quantise import quantise_files

    smaller, errors, total = quantise_files(files, kind)
    report.notes.append(f"weights in {kind}: {len(errors)} of {total} matrices")
    if errors:
        worst = max(errors, key=lambda name: errors[name].max())
        mean = sum(float(found.mean()) for found in errors.values()) / len(errors)
        report.notes.append(
            f"relative error of an output channel's weights in {kind}: mean {mean:.2e}, largest "
            f"{errors[worst].max():.2e} in '{worst}'"
        )
    return smaller


def _graphs(program: Program, *, step: bool) -> tuple[dict[str, Graph], Interface]:
    """The graph of each file, and how the names of the program's graph map to those in them."""
    from seqmix_onnxruntime.fuse import fuse
    from seqmix_onnxruntime.interface import Interface, to_ecosystem
    from seqmix_onnxruntime.model_file import MODEL, STEP
    from seqmix_onnxruntime.one_token import one_token

    graph = _only_graph(program.module)
    interface = Interface.plain(graph)
    if _is_model(graph):
        graph, interface = to_ecosystem(graph, state_specs(program.config))
        graph = _cleaned(graph)
    graphs = {MODEL: fuse(graph)}
    if step and (small := one_token(graph)) is not None:
        graphs[STEP] = fuse(_cleaned(small))
    return graphs, interface


def _cleaned(graph: Graph) -> Graph:
    return dce(cse(Module(graph.name, (graph,)))).graphs[0]


def _only_graph(module: Module) -> Graph:
    if len(module.graphs) != 1:
        raise BackendError(
            f"module '{module.name}': backend 'onnxruntime' makes one file of one graph, "
            f"found {', '.join(g.name for g in module.graphs) or 'none'}"
        )
    return module.graphs[0]


def _is_model(graph: Graph) -> bool:
    return {"input_ids", "positions"} <= set(graph.inputs)


def _refusal(op: Op) -> str | None:
    """Why an op that has an emitter does not fit ONNX in this form."""
    if op.name == "attention" and op.operands[6] is not None:
        return "the ONNX operator has no sinks"
    return missing_kernel(op)


def _metadata(config: ModelConfig, interface: Interface) -> dict[str, str]:
    """What the file says of itself: enough to run it without the rest of the folder."""
    try:
        own = version("seqmix")
    except PackageNotFoundError:
        own = "unknown"
    states = [
        {key: dataclasses.asdict(spec) for key, spec in layer.items()}
        for layer in (state_specs(config) if interface.positions else [])
    ]
    return {
        "seqmix_version": own,
        "seqmix_config": config.model_dump_json(exclude_none=True),
        "seqmix_states": json.dumps(states),
        "seqmix_interface": json.dumps(dataclasses.asdict(interface)),
    }
