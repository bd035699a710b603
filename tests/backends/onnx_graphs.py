"""Running a module on the onnxruntime backend and on the interpreter, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx

from seqmix.backend import Program
from seqmix.choose import BackendLegality
from seqmix.config import BlockConfig, Kind, ModelConfig
from seqmix.weights import Weights, to_numpy, to_torch
from seqmix_ir.defn import Array
from seqmix_ir.graph import Module
from seqmix_ir.interpret import Interpreter
from seqmix_ir.passes import lower
from seqmix_onnxruntime.backend import OnnxRuntimeBackend
from seqmix_onnxruntime.model_file import MODEL
from seqmix_onnxruntime.session import OnnxExecutable

__all__ = ["CONFIG", "agree", "compile_module", "kinds_of", "nodes_of", "run_onnx", "superfluous"]

CONFIG = ModelConfig(
    vocab_size=11,
    width=8,
    context_length=64,
    blocks=[BlockConfig(steps=[Kind.model_validate({"kind": "mlp", "hidden": 8})])],
)
"""Of no model: graphs that are not captured from one need some configuration all the same."""

_ROUGH = {"f16": 2e-2, "bf16": 3e-2, "f32": 2e-5, "f64": 1e-9}


def compile_module(
    module: Module,
    weights: Mapping[str, Array] | None = None,
    config: ModelConfig = CONFIG,
    **options: Any,
) -> OnnxExecutable:
    """Lower a module for the backend, with every pass verified, and compile it."""
    settings = {"threads": 1, **options}
    backend = OnnxRuntimeBackend(settings)
    legal, _ = lower(module, BackendLegality(backend, "cpu"), verify_each=True)
    lazy = Weights({name: partial(np.asarray, array) for name, array in (weights or {}).items()})
    executable = backend.compile(Program(legal, lazy, config), "cpu", settings)
    assert isinstance(executable, OnnxExecutable)
    return executable


def nodes_of(executable: OnnxExecutable) -> list[Any]:
    """The nodes of the file's graph, without those in bodies."""
    return list(onnx.load(executable.folder / MODEL, load_external_data=False).graph.node)


def kinds_of(executable: OnnxExecutable) -> Counter[str]:
    """How many nodes of each kind the file has, in bodies and branches too."""
    found: Counter[str] = Counter()
    graphs = [onnx.load(executable.folder / MODEL, load_external_data=False).graph]
    while graphs:
        for node in graphs.pop().node:
            found[node.op_type] += 1
            graphs += [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return found


def superfluous(model: onnx.ModelProto) -> list[Any]:
    """Nodes and weights that nothing reads, and nodes that compute what another one does."""
    graph = model.graph
    read = Counter(name for node in graph.node for name in node.input)
    wanted = {output.name for output in graph.output}
    dead = [n.name for n in graph.node if not any(o in wanted or read[o] for o in n.output)]
    unread = [weight.name for weight in graph.initializer if not read[weight.name]]
    seen: Counter[Any] = Counter()
    for node in graph.node:
        attributes = b"".join(sorted(a.SerializeToString() for a in node.attribute))
        seen[node.op_type, tuple(node.input), attributes] += 1
    return [*dead, *unread, *(key[:2] for key, count in seen.items() if count > 1)]


def run_onnx(
    executable: OnnxExecutable, inputs: Mapping[str, Array], graph: str = "main"
) -> dict[str, Array]:
    """Results of a graph as arrays."""
    out = executable.run(graph, {name: to_torch(array) for name, array in inputs.items()})
    return {name: to_numpy(tensor) for name, tensor in out.items()}


def agree(
    module: Module,
    executable: OnnxExecutable,
    inputs: Mapping[str, Array],
    weights: Mapping[str, Array] | None = None,
    graph: str = "main",
) -> None:
    """Assert that names, dtypes, shapes and values are those of the interpreter."""
    wanted = Interpreter(module, dict(weights or {})).run(graph, inputs)
    found = run_onnx(executable, inputs, graph)
    assert set(found) == set(wanted)
    for name, value in module.graph(graph).results.items():
        assert found[name].dtype == wanted[name].dtype, name
        assert found[name].shape == wanted[name].shape, name
        rough = _ROUGH.get(value.type.dtype, 0.0)
        wide = np.float64 if value.type.dtype in _ROUGH else wanted[name].dtype
        np.testing.assert_allclose(
            found[name].astype(wide), wanted[name].astype(wide), rtol=rough, atol=rough
        )
