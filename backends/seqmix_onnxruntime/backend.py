"""The onnxruntime backend: the graph becomes an ONNX file that ONNX Runtime runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from seqmix.backend import Availability, Backend, Executable, Program, Report
from seqmix.config import ModelConfig, read_config
from seqmix.errors import BackendError
from seqmix.interface import check_options, read_manifest, read_module
from seqmix.model import state_specs
from seqmix_ir.graph import Graph, Op
from seqmix_ir.passes import cse, dce

__all__ = ["OnnxRuntimeBackend"]

_OPTIONS: dict[str, type] = {"threads": int, "external_data_threshold": int, "spin": bool}
_THRESHOLD = 1_500_000_000
_DTYPES = frozenset({"f64", "f32", "f16", "i64", "i32", "i8", "u8", "bool"})


class OnnxRuntimeBackend(Backend):
    """Runs on the CPU, and on CUDA with onnxruntime-gpu.

    Options:

    - ``threads``: of one operator; by default all cores.
    - ``external_data_threshold``: bytes of weights from which they get a file of their own.
    - ``spin``: let idle threads spin; a little faster alone, much slower beside other work.
    """

    name: ClassVar[str] = "onnxruntime"
    version: ClassVar[str] = "1"

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
        from seqmix_onnxruntime.ops import EMITTERS

        if op.name not in EMITTERS:
            return f"ONNX has no operator for '{op.name}'"
        values = [v for v in (*op.operands, *op.results) if v is not None]
        odd = sorted({v.type.dtype for v in values} - _DTYPES)
        if odd:
            return f"ONNX Runtime has no kernel for {', '.join(odd)}"
        return _refusal(op)

    def compile(self, program: Program, target: str, options: Mapping[str, Any]) -> Executable:
        """Write the file to a temporary folder and start a session on it."""
        from seqmix_onnxruntime.interface import Interface, to_ecosystem
        from seqmix_onnxruntime.model_file import make_model, write_model
        from seqmix_onnxruntime.session import OnnxExecutable

        check_options(self.name, options, _OPTIONS)
        self._check_target(target)
        original = program.module.graph("forward")
        graph, interface = original, Interface.plain(original)
        if _is_model(original):
            graph, interface = to_ecosystem(original, state_specs(program.config))
            module = dataclasses.replace(program.module, graphs=(graph,))
            graph = dce(cse(module)).graphs[0]
        model, arrays = make_model(graph, interface, program.weights, _metadata(program.config))
        folder = TemporaryDirectory(prefix="seqmix-onnx-")
        threshold = options.get("external_data_threshold", _THRESHOLD)
        report = Report(self.name, target)
        report.bytes = write_model(model, arrays, Path(folder.name), threshold)
        for node in model.graph.node:
            report.kernels[node.op_type] = report.kernels.get(node.op_type, 0) + 1
        return OnnxExecutable(folder, program.module, interface, program.config, report, options)

    def load(self, directory: Path) -> Executable:
        """Start a session on a saved folder."""
        from seqmix_onnxruntime.interface import Interface
        from seqmix_onnxruntime.session import OnnxExecutable

        report, manifest = read_manifest(directory)
        return OnnxExecutable(
            directory,
            read_module(directory),
            Interface(**manifest["interface"]),
            read_config(directory / "config.json"),
            report,
            manifest["options"],
        )

    def _check_target(self, target: str) -> None:
        devices = self.probe().devices
        if target not in devices:
            raise BackendError(
                f"backend 'onnxruntime' has no target '{target}' here; available: "
                f"{', '.join(devices)}"
            )


def _is_model(graph: Graph) -> bool:
    return {"input_ids", "positions"} <= set(graph.inputs)


def _refusal(op: Op) -> str | None:
    """Why an op that has an emitter does not fit ONNX in this form."""
    if op.name == "attention":
        if op.operands[6] is not None:
            return "the ONNX operator has no sinks"
        if any(v is not None and v.type.dtype == "f64" for v in op.operands[:3]):
            return "ONNX Runtime's Attention has no float64 kernel"
    if op.name in ("rotary", "rms_norm") and op.results[0].type.dtype == "f64":
        return "ONNX Runtime has no float64 kernel for it"
    if op.name == "rotary" and op.operands[1] is not None:
        table, x = op.operands[1].type.dtype, op.results[0].type.dtype
        if table != x:
            return f"ONNX wants tables of the type of x, here they are {table} and {x}"
    return None


def _metadata(config: ModelConfig) -> dict[str, str]:
    try:
        own = version("seqmix")
    except PackageNotFoundError:
        own = "unknown"
    return {"seqmix_version": own, "seqmix_config": config.model_dump_json(exclude_none=True)}
