"""The ONNX file: made from a graph, checked in full, with large weights beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper

from seqmix.errors import BackendError
from seqmix.weights import Weights
from seqmix_ir.graph import Graph
from seqmix_onnxruntime.emit import (
    Emitter,
    Root,
    find_sizes,
    tensor_info,
    tensor_proto,
)
from seqmix_onnxruntime.form import Form, opset_imports
from seqmix_onnxruntime.interface import Interface
from seqmix_onnxruntime.ops import EMITTERS
from seqmix_onnxruntime.turned import only_turned

__all__ = ["DATA", "MODEL", "make_model", "write_model"]

MODEL = "model.onnx"
DATA = "model.onnx.data"
_SMALL = 1024
_ALIGNMENT = 4096
"""Weights in the data file start at pages, so that readers can map them."""

Arrays = dict[str, Callable[[], NDArray[Any]]]


def make_model(
    graph: Graph,
    interface: Interface,
    weights: Weights,
    metadata: Mapping[str, str],
    form: Form,
) -> tuple[ModelProto, Arrays]:
    """The file without its weights, and these by name of the initializer, each made on demand."""
    root = Root(weights, EMITTERS, form, transposed=only_turned(graph.block))
    root.positive = frozenset(info.name for info in graph.dims if info.min > 0)
    emitter = Emitter(root)
    inputs = {hint: interface.inputs.get(hint, hint) for hint in graph.inputs}
    if interface.positions:
        inputs = {hint: hint for hint in graph.inputs}
    root.sizes = find_sizes(graph, inputs)
    emitter.names.update({value: inputs[hint] for hint, value in graph.inputs.items()})
    outputs = list(graph.outputs) if interface.positions else list(interface.outputs.values())
    root.reserved = frozenset((*inputs.values(), *outputs))
    emitter.block(graph.block, outputs)
    proto = helper.make_graph(
        _live(emitter.nodes, outputs),
        graph.name,
        [tensor_info(inputs[hint], value) for hint, value in graph.inputs.items()],
        [tensor_info(n, v) for n, v in zip(outputs, graph.block.results, strict=True)],
    )
    opsets = opset_imports(form, set(_domains(proto.node)))
    model = helper.make_model(proto, opset_imports=opsets, ir_version=form.ir_version)
    model.producer_name = "seqmix"
    helper.set_model_props(model, dict(metadata))
    read = set(_inputs_of(proto.node))
    return model, {n: make for n, make in root.initializers.items() if n in read}


def write_model(model: ModelProto, arrays: Arrays, folder: Path, threshold: int) -> dict[str, int]:
    """Write ``model.onnx``, and ``model.onnx.data`` when the weights exceed ``threshold`` bytes.

    The file is checked with the full checker and strict shape inference; BackendError when it does
    not pass. Returns the bytes of each file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Weights are read once for their sizes and once to be written, so that one is held at a time.
    total = sum(make().nbytes for make in arrays.values())
    protos = (
        [tensor_proto(name, make()) for name, make in arrays.items()]
        if total <= threshold
        else _write_data(arrays, folder / DATA)
    )
    model.graph.initializer.extend(protos)
    onnx.save(model, folder / MODEL)
    del model.graph.initializer[:]
    _check(folder / MODEL)
    return {file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.is_file()}


def _write_data(arrays: Arrays, path: Path) -> list[TensorProto]:
    """Large arrays into one file, each at a page; small ones stay in the model file."""
    protos = []
    with path.open("wb") as file:
        for name, make in arrays.items():
            array = np.asarray(make(), order="C")
            if array.nbytes < _SMALL:
                protos.append(tensor_proto(name, array))
                continue
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            protos.append(_external(name, array, file.tell()))
            file.write(array.reshape(-1).view(np.uint8).data)
    return protos


def _external(name: str, array: NDArray[Any], offset: int) -> TensorProto:
    proto = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype))
    proto.dims.extend(array.shape)
    proto.data_location = TensorProto.EXTERNAL
    for key, value in (("location", DATA), ("offset", offset), ("length", array.nbytes)):
        proto.external_data.add(key=key, value=str(value))
    return proto


def _check(path: Path) -> None:
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise BackendError(
            f"{path}: the exported file does not pass the ONNX checker: {error}; "
            "please report it with the output of 'seqmix ir --stage legalized'"
        ) from error


def _live(nodes: list[NodeProto], outputs: list[str]) -> list[NodeProto]:
    """The nodes that some output depends on."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted.isdisjoint(node.output):
            continue
        kept.append(node)
        wanted.update(_inputs_of([node]))
    return kept[::-1]


def _inputs_of(nodes: Iterable[NodeProto]) -> Iterable[str]:
    """Every name that nodes read, in their bodies too."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _inputs_of(attribute.g.node)
                yield from (o.name for o in attribute.g.output)


def _domains(nodes: Iterable[NodeProto]) -> Iterable[str]:
    """The domains of the nodes, and of those in their bodies."""
    for node in nodes:
        yield node.domain
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _domains(attribute.g.node)
