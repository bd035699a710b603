"""How a plugin writes an op in ONNX, ``onnxruntime:<op>``: it goes before the backend itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seqmix import compile, registry
from seqmix.testing.cases import GRAPH, Case, make_case
from seqmix.weights import to_torch

pytest.importorskip("onnxruntime")


def leaky(e: Any, op: Any, inputs: list[str]) -> list[str]:
    return [e.one("LeakyRelu", *inputs, alpha=0.0)]


def case() -> Case:
    example = registry.op_table().lookup("relu").examples(np.random.default_rng(0))[0]
    return make_case(example, "f32")


def test_a_lowering_goes_first() -> None:
    subject = case()
    own = compile(subject.program(), "onnxruntime", cache=False)
    with registry.register_local("lowerings", "onnxruntime:relu", leaky):
        other = compile(subject.program(), "onnxruntime", cache=False)
    assert own.report.kernels == {"Relu": 1}
    assert other.report.kernels == {"LeakyRelu": 1}
    inputs = {name: to_torch(array) for name, array in subject.inputs.items()}
    found = other.run(GRAPH, inputs)
    assert subject.row("runs", "f32", found).ok


def test_a_lowering_makes_an_op_native() -> None:
    from seqmix_onnxruntime.backend import OnnxRuntimeBackend

    example = registry.op_table().lookup("expm1").examples(np.random.default_rng(0))[0]
    op, backend = make_case(example, "f32").op, OnnxRuntimeBackend()
    assert backend.supports(op, "cpu") == "ONNX has no operator for 'expm1'"
    with registry.register_local("lowerings", "onnxruntime:expm1", leaky):
        assert backend.supports(op, "cpu") is None
