"""Modules compiled by the onnxruntime backend, and what their files hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import onnx
from tests.backends.graphs import CONFIG, agree, program_for, run_arrays

from seqmix.config import ModelConfig
from seqmix_ir.defn import Array
from seqmix_ir.graph import Module
from seqmix_onnxruntime.backend import OnnxRuntimeBackend
from seqmix_onnxruntime.model_file import MODEL
from seqmix_onnxruntime.session import OnnxExecutable

__all__ = ["CONFIG", "agree", "compile_module", "kinds_of", "nodes_of", "run_arrays", "superfluous"]


def compile_module(
    module: Module,
    weights: Mapping[str, Array] | None = None,
    config: ModelConfig = CONFIG,
    **options: Any,
) -> OnnxExecutable:
    """Lower a module for the backend, with every pass verified, and compile it."""
    settings = {"threads": 1, **options}
    backend = OnnxRuntimeBackend(settings)
    executable = backend.compile(program_for(backend, module, weights, config), "cpu", settings)
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
    read = _read(graph)
    wanted = {output.name for output in graph.output}
    dead = [n.name for n in graph.node if not any(o in wanted or read[o] for o in n.output)]
    unread = [weight.name for weight in graph.initializer if not read[weight.name]]
    seen: Counter[Any] = Counter()
    for node in graph.node:
        attributes = b"".join(sorted(a.SerializeToString() for a in node.attribute))
        seen[node.op_type, tuple(node.input), attributes] += 1
    return [*dead, *unread, *(key[:2] for key, count in seen.items() if count > 1)]


def _read(graph: onnx.GraphProto) -> Counter[str]:
    """How often each name is read, in bodies and branches too."""
    found = Counter(name for node in graph.node for name in node.input)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += _read(attribute.g)
    return found
