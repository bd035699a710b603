"""The folder that the onnxruntime backend saves, with weights in a file of their own."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.target import Target

from seqmix.backend import Program
from seqmix.compile import load as load_executable
from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.dims import dim
from seqmix_ir.graph import DimInfo, Graph, Module, Value
from seqmix_ir.types import TensorType

__all__ = ["TARGET"]


def make(folder: Path) -> None:
    from seqmix_onnxruntime.backend import OnnxRuntimeBackend

    options = {"external_data_threshold": 1000, "threads": 1}
    OnnxRuntimeBackend().compile(_program(), "cpu", options).save(folder)


def _program() -> Program:
    import numpy as np
    from tests.core import tiny

    from seqmix.weights import Weights

    x = Value(TensorType("f32", (dim("S"), 30)), "x")
    b = Builder()
    w = b(ops.Weight("w", TensorType("f32", (40, 30))))
    block = b.block([x], [b(ops.Linear(), x, w, None)])
    module = Module("m", (Graph("main", block, ("y",), (DimInfo("S"),)),))
    return Program(module, Weights({"w": lambda: np.ones((40, 30), "f4")}), tiny.config(), None)


def load(folder: Path) -> None:
    load_executable(folder)


TARGET = Target("onnx", make, load)
