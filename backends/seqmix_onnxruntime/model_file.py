"""The ONNX file: made from a graph, checked in full, with large weights beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

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
from seqmix_onnxruntime.ops import all_emitters
from seqmix_onnxruntime.turned import only_turned

__all__ = ["DATA", "MODEL", "STEP", "Made", "make_model", "write_models"]

MODEL = "model.onnx"
STEP = "step.onnx"
"""The file for one token at a time, where there is one."""
DATA = "model.onnx.data"
_SMALL = 1024
_ALIGNMENT = 4096
"""Arrays in the data file start at pages, so that readers can map them."""


@dataclass(frozen=True)
class Made:
    """A file without its initializers, and these by name, each made on demand."""

    model: ModelProto
    arrays: dict[str, Callable[[], NDArray[Any]]]


def make_model(
    graph: Graph,
    interface: Interface,
    weights: Weights,
    metadata: Mapping[str, str],
    form: Form,
) -> Made:
    """The file that computes ``graph``. Initializers called like a weight hold that weight."""
    root = Root(weights, all_emitters(), form, transposed=only_turned(graph.block))
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
    return Made(model, {n: make for n, make in root.initializers.items() if n in read})


def write_models(files: Mapping[str, Made], folder: Path, threshold: int) -> dict[str, int]:
    """Write the files, and ``model.onnx.data`` for large weights that several need.

    One file alone keeps its weights up to ``threshold`` bytes in all. Every file is checked with
    the full checker and strict shape inference; BackendError when it does not pass. Returns the
    bytes of each file in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _Data(folder / DATA, external=len(files) > 1 or _bytes_of(files) > threshold) as data:
        for name, made in files.items():
            made.model.graph.initializer.extend(data.protos(made.arrays))
            onnx.save(made.model, folder / name)
            del made.model.graph.initializer[:]
    for name in files:
        _check(folder / name)
    return {file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.is_file()}


def _bytes_of(files: Mapping[str, Made]) -> int:
    return sum(make().nbytes for made in files.values() for make in made.arrays.values())


class _Data:
    """The file of large arrays, made when the first of them comes; equal ones are written once."""

    def __init__(self, path: Path, *, external: bool) -> None:
        """With ``external`` off all arrays stay in the model files."""
        self._path = path
        self._external = external
        self._file: BinaryIO | None = None
        self._places: dict[bytes, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def protos(self, arrays: Mapping[str, Callable[[], NDArray[Any]]]) -> list[TensorProto]:
        """The initializers; weights are made one at a time."""
        return [self._proto(name, np.asarray(make(), order="C")) for name, make in arrays.items()]

    def _proto(self, name: str, array: NDArray[Any]) -> TensorProto:
        if not self._external or array.nbytes < _SMALL:
            return tensor_proto(name, array)
        content = array.reshape(-1).view(np.uint8).data
        key = hashlib.sha256(content).digest()
        if key not in self._places:
            self._places[key] = self._written(content)
        return _external(name, array, self._places[key])

    def _written(self, content: memoryview) -> int:
        """Append bytes at the next page; their place."""
        if self._file is None:
            self._file = self._path.open("wb")
        self._file.write(b"\0" * (-self._file.tell() % _ALIGNMENT))
        place = self._file.tell()
        self._file.write(content)
        return place


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
