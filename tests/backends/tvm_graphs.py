"""Modules on the tvm backend and on the interpreter, side by side; many ops in one graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import tests.backends.needs_tvm  # noqa: F401  # skips
from tests.ir.op_samples import DIMS, B, P, S, Sample

from seqmix.backend import Executable, Program
from seqmix.choose import BackendLegality
from seqmix.config import BlockConfig, Kind, ModelConfig
from seqmix.weights import Weights, to_numpy, to_torch
from seqmix_ir.builder import Builder
from seqmix_ir.defn import Array
from seqmix_ir.graph import Graph, Module, Value
from seqmix_ir.interpret import Interpreter
from seqmix_ir.passes import lower
from seqmix_ir.types import TensorType
from seqmix_tvm.backend import TvmBackend

__all__ = ["CONFIG", "agree", "batch_inputs", "batched", "compile_module"]

CONFIG = ModelConfig(
    vocab_size=11,
    width=8,
    context_length=64,
    blocks=[BlockConfig(steps=[Kind.model_validate({"kind": "mlp", "hidden": 8})])],
)
"""Of no model: graphs that are not captured from one need some configuration all the same."""

_ROUGH = {"f16": 2e-2, "bf16": 3e-2, "f32": 2e-5, "f64": 1e-9}


def compile_module(
    module: Module, weights: Mapping[str, Array] | None = None, **options: Any
) -> Executable:
    """Lower a module for the backend, with every pass verified, and compile it."""
    backend = TvmBackend(options)
    legal, _ = lower(module, BackendLegality(backend, "cpu"), verify_each=True)
    lazy = Weights({name: partial(np.asarray, array) for name, array in (weights or {}).items()})
    return backend.compile(Program(legal, lazy, CONFIG), "cpu", options)


def agree(
    module: Module,
    executable: Executable,
    inputs: Mapping[str, Array],
    weights: Mapping[str, Array] | None = None,
) -> None:
    """Assert that names, dtypes, shapes and values are those of the interpreter."""
    wanted = Interpreter(module, dict(weights or {})).run("main", inputs)
    found = executable.run("main", {name: to_torch(array) for name, array in inputs.items()})
    assert set(found) == set(wanted)
    for name, value in module.graph("main").results.items():
        _same(f"{name} {value.type}", to_numpy(found[name]), wanted[name], value.type.dtype)


def _same(what: str, found: Array, wanted: Array, dtype: str) -> None:
    assert found.dtype == wanted.dtype, what
    assert found.shape == wanted.shape, what
    rough = _ROUGH.get(dtype, 0.0)
    wide = np.float64 if dtype in _ROUGH else wanted.dtype
    np.testing.assert_allclose(
        found.astype(wide), wanted.astype(wide), rtol=rough, atol=rough, err_msg=what
    )


def batched(samples: Sequence[Sample]) -> Module:
    """All samples in one graph: a library is linked once for them."""
    b = Builder()
    sizes = Value(TensorType("bool", (B, S, P)), "sizes")
    params: list[Value] = [sizes]
    results: list[Value] = []
    names: list[str] = []
    for n, sample in enumerate(samples):
        own = [None if t is None else Value(t, f"s{n}x{i}") for i, t in enumerate(sample.types)]
        params += [p for p in own if p is not None]
        made = b.emit(sample.defn, *own, body=sample.body)
        results += made
        names += [f"{sample.defn.name}{n}y{i}" for i in range(len(made))]
    graph = Graph("main", b.block(params, results), tuple(names), DIMS)
    return Module("batch", (graph,))


def batch_inputs(samples: Iterable[Sample], sizes: Mapping[str, int]) -> dict[str, Array]:
    """Arrays for the graph of :func:`batched`."""
    made: dict[str, Array] = {}
    for n, sample in enumerate(samples):
        for key, array in sample.inputs(sizes).items():
            made[key if key == "sizes" else f"s{n}{key}"] = array
    return made
