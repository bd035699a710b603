"""Running a module on a backend and on the interpreter, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from seqmix.backend import Backend, Executable, Program
from seqmix.choose import BackendLegality
from seqmix.config import BlockConfig, Kind, ModelConfig
from seqmix.weights import Weights, to_numpy, to_torch
from seqmix_ir.defn import Array
from seqmix_ir.graph import Module
from seqmix_ir.interpret import Interpreter
from seqmix_ir.passes import lower

__all__ = ["CONFIG", "agree", "program_for", "run_arrays"]

CONFIG = ModelConfig(
    vocab_size=11,
    width=8,
    context_length=64,
    blocks=[BlockConfig(steps=[Kind.model_validate({"kind": "mlp", "hidden": 8})])],
)
"""Of no model: graphs that are not captured from one need some configuration all the same."""

_ROUGH = {"f16": 2e-2, "bf16": 3e-2, "f32": 2e-5, "f64": 1e-9}


def program_for(
    backend: Backend,
    module: Module,
    weights: Mapping[str, Array] | None = None,
    config: ModelConfig = CONFIG,
) -> Program:
    """The module as the backend takes it, with every pass on the way verified."""
    legal, _ = lower(module, BackendLegality(backend, "cpu"), verify_each=True)
    lazy = Weights({name: partial(np.asarray, array) for name, array in (weights or {}).items()})
    return Program(legal, lazy, config)


def run_arrays(
    executable: Executable, inputs: Mapping[str, Array], graph: str = "main"
) -> dict[str, Array]:
    """Results of a graph as arrays."""
    out = executable.run(graph, {name: to_torch(array) for name, array in inputs.items()})
    return {name: to_numpy(tensor) for name, tensor in out.items()}


def agree(
    module: Module,
    executable: Executable,
    inputs: Mapping[str, Array],
    weights: Mapping[str, Array] | None = None,
    graph: str = "main",
) -> None:
    """Assert that names, dtypes, shapes and values are those of the interpreter."""
    wanted = Interpreter(module, dict(weights or {})).run(graph, inputs)
    found = run_arrays(executable, inputs, graph)
    assert set(found) == set(wanted)
    for name, value in module.graph(graph).results.items():
        _same(f"{name} {value.type}", found[name], wanted[name], value.type.dtype)


def _same(what: str, found: Array, wanted: Array, dtype: str) -> None:
    assert found.dtype == wanted.dtype, what
    assert found.shape == wanted.shape, what
    rough = _ROUGH.get(dtype, 0.0)
    wide = np.float64 if dtype in _ROUGH else wanted.dtype
    np.testing.assert_allclose(
        found.astype(wide), wanted.astype(wide), rtol=rough, atol=rough, err_msg=what
    )
