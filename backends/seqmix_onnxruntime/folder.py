"""A saved folder, checked before ONNX Runtime opens any of it, and what it opens afterwards.

Anyone may have put the folder together: its parts have to fit each other, weights have to lie where
the exporter puts them, and no claimed size may be larger than what is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from onnx import TensorProto

from seqmix.errors import BackendError
from seqmix.interface import MANIFEST, saved_file
from seqmix_ir.graph import Graph
from seqmix_ir.types import TensorType
from seqmix_onnxruntime.interface import Interface
from seqmix_onnxruntime.model_file import DATA, MODEL, STEP

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["check_files", "check_session", "read_interface"]

_LARGEST = 2**31 - 1
"""Bytes of an ONNX file: the format it is written in has no more."""
_WIDEST = 8
"""Bytes of an element that one byte of an ONNX file may stand for, at most."""
_DIGITS = 19
_AGAIN = "compile the model again"

_BITS: Mapping[int, int] = {
    TensorProto.FLOAT: 32, TensorProto.DOUBLE: 64, TensorProto.FLOAT16: 16,
    TensorProto.BFLOAT16: 16, TensorProto.INT64: 64, TensorProto.INT32: 32, TensorProto.INT16: 16,
    TensorProto.INT8: 8, TensorProto.UINT64: 64, TensorProto.UINT32: 32, TensorProto.UINT16: 16,
    TensorProto.UINT8: 8, TensorProto.BOOL: 8, TensorProto.UINT4: 4, TensorProto.INT4: 4,
}  # fmt: skip
"""Of an element, for the types that the exporter writes."""

_TYPES: Mapping[str, str] = {
    "f64": "double", "f32": "float", "f16": "float16", "bf16": "bfloat16", "i64": "int64",
    "i32": "int32", "i8": "int8", "u8": "uint8", "bool": "bool",
}  # fmt: skip
"""What ONNX Runtime calls them."""


def read_interface(folder: Path, found: Any, graph: Graph) -> Interface:
    """How the names of a graph map to those of the file; BackendError where they do not fit."""
    try:
        interface = Interface(**found)
    except TypeError as error:
        raise _unfit(folder, str(error)) from error
    for name in ("inputs", "outputs"):
        held = getattr(interface, name)
        if not _is_text_by_text(held) or len(set(held.values())) < len(held):
            raise _unfit(folder, f"'{name}' should be a name for each name")
    if not isinstance(interface.grown, list) or not all(
        isinstance(n, str) for n in interface.grown
    ):
        raise _unfit(folder, "'grown' should be a list of names")
    if not isinstance(interface.positions, bool) or not isinstance(interface.by_order, bool):
        raise _unfit(folder, "'positions' and 'by_order' should be true or false")
    _check_names(folder, interface, graph)
    return interface


def check_files(folder: Path) -> None:
    """BackendError for a file that is none, leads out of the folder, or claims more than it has."""
    for name in (MODEL, STEP, DATA):
        path = saved_file(folder, name)
        if path.exists() and not path.is_file():
            raise BackendError(f"{path}: is no regular file; {_AGAIN}")
    if not (folder / MODEL).is_file():
        raise BackendError(f"{folder / MODEL}: is missing; {_AGAIN}")
    for name in (MODEL, STEP):
        if (folder / name).is_file():
            _check_tensors(folder / name)


def check_session(
    path: Path, session: onnxruntime.InferenceSession, interface: Interface, graph: Graph
) -> None:
    """BackendError where the file takes or gives something else than the graph says."""
    inputs = {interface.inputs[n]: v.type for n, v in graph.inputs.items() if n in interface.inputs}
    if interface.positions:
        inputs |= dict.fromkeys(("attention_mask", "position_ids"), graph.inputs["positions"].type)
    results = graph.results
    outputs = {own: results[name].type for name, own in interface.outputs.items()}
    for kind, wanted, found in (
        ("inputs", inputs, session.get_inputs()),
        ("outputs", outputs, session.get_outputs()),
    ):
        expected = {name: _described(type) for name, type in wanted.items()}
        actual = {x.name: (x.type, len(x.shape)) for x in found}
        if expected != actual:
            wrong = sorted(n for n in {*expected, *actual} if expected.get(n) != actual.get(n))[0]
            raise BackendError(
                f"{path}: its {kind} are not those of the module beside it: '{wrong}' should be "
                f"{_told(expected.get(wrong))}, found {_told(actual.get(wrong))}; {_AGAIN}"
            )


def _check_names(folder: Path, interface: Interface, graph: Graph) -> None:
    """BackendError unless every input and output of the graph is somewhere in the file."""
    grown = set(interface.grown)
    inputs, outputs = {*interface.inputs, *grown}, {*interface.outputs, *grown}
    if interface.positions:
        inputs.add("positions")
    for kind, found, wanted in (
        ("inputs", inputs, graph.inputs),
        ("outputs", outputs, graph.results),
    ):
        if found != set(wanted):
            wrong = sorted(found ^ set(wanted))[0]
            raise _unfit(folder, f"its {kind} are not those of the graph, such as '{wrong}'")
    wholes = [*grown, *(("input_ids", "positions") if interface.positions else ())]
    for name in wholes:
        if name not in graph.inputs or _described(graph.inputs[name].type) != ("tensor(int64)", 2):
            raise _unfit(folder, f"'{name}' should be an input of i64 with two axes")


def _check_tensors(path: Path) -> None:
    """BackendError for a tensor that is larger than what is there, or that lies elsewhere."""
    size = path.stat().st_size
    if size > _LARGEST:
        raise BackendError(f"{path}: has {size} bytes, an ONNX file has at most {_LARGEST}")
    try:
        model = onnx.load_model(path, load_external_data=False)
    except Exception as error:  # Of protobuf; which one depends on how it was built.
        raise BackendError(f"{path}: is no ONNX file: {error}; {_AGAIN}") from error
    for tensor in _tensors(model):
        count = math.prod(tensor.dims)
        if any(n < 0 for n in tensor.dims) or count > 2**48:
            raise _broken(path, tensor, f"claims the shape {list(tensor.dims)}")
        if tensor.data_type == TensorProto.STRING:
            continue
        if (bits := _BITS.get(tensor.data_type)) is None:
            raise _broken(path, tensor, f"has the unknown type {tensor.data_type}")
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
            _check_place(path, tensor, -(-count * bits // 8))
        elif count * bits // 8 > _WIDEST * size:
            raise _broken(path, tensor, f"claims {count} elements in a file of {size} bytes")


def _check_place(path: Path, tensor: TensorProto, length: int) -> None:
    """BackendError unless a tensor lies wholly within the data file."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if entries.get("location") != DATA:
        raise _broken(path, tensor, f"lies in '{entries.get('location')}', expected '{DATA}'")
    offset = _number(entries.get("offset", "0"))
    claimed = _number(entries.get("length", str(length)))
    data = path.parent / DATA
    if not data.is_file():
        raise _broken(path, tensor, f"lies in '{DATA}', which is missing")
    there = data.stat().st_size
    if offset is None or claimed != length or offset + length > there:
        raise _broken(
            path,
            tensor,
            f"should have {length} bytes within the {there} of '{DATA}', found length "
            f"{entries.get('length')} at {entries.get('offset')}",
        )


def _tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Every tensor of a model, wherever it is: in graphs, bodies, attributes, functions."""
    left: list[Any] = [model]
    while left:
        message = left.pop()
        if isinstance(message, TensorProto):
            yield message
            continue
        for _, value in message.ListFields():
            if _is_message(value):
                left.append(value)
            elif not isinstance(value, str | bytes | int | float):
                left.extend(item for item in value if _is_message(item))


def _is_message(value: Any) -> bool:
    return hasattr(value, "ListFields")


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def _is_text_by_text(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(item, str) for pair in value.items() for item in pair
    )


def _described(type: TensorType) -> tuple[str, int]:
    return f"tensor({_TYPES[type.dtype]})", type.rank


def _told(found: tuple[str, int] | None) -> str:
    return "nothing" if found is None else f"{found[0]} with {found[1]} axes"


def _broken(path: Path, tensor: TensorProto, what: str) -> BackendError:
    return BackendError(f"{path}: tensor '{tensor.name[:200]}' {what[:500]}; {_AGAIN}")


def _unfit(folder: Path, what: str) -> BackendError:
    return BackendError(
        f"{folder / MANIFEST}: 'interface' is missing or broken: {what[:500]}; {_AGAIN}"
    )
