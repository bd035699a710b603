"""Weights of 4 or 8 bits: the quantizer of ONNX Runtime packs them, its operators read them.

A product reads ``MatMulNBits`` instead of ``MatMul``, an embedding ``GatherBlockQuantized`` instead
of ``Gather``. Products round what they read to 8 bits; their sums are float32. 32 terms of one
output channel are a block with a scale and a zero point. Tables have 8 bits whatever is asked for:
every token goes through them. A table that is the head as well is packed once: both operators read
the same bytes. Weights inside a ``Scan`` or an ``If`` stay as they are, and so do narrow ones:
gates, which cost little and matter much.

N output channels (or tokens of a table), K terms, J blocks of a channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, ModelProto, NodeProto, helper

from seqmix_onnxruntime.form import CONTRIB
from seqmix_onnxruntime.model_file import Made

__all__ = ["BLOCK", "KINDS", "Packed", "channel_errors", "pack", "quantise_files", "unpacked"]

KINDS: Mapping[str, int] = {"int4": 4, "int8": 8}
"""The kinds of smaller weights, by the bits of an element."""

_TABLE_BITS = 8
_ACCURACY = 4
"""Of products: with what they read rounded to 8 bits per block. On one core that is 3 times (of 4
bits) to 90 times (of 8) faster for one token than exact sums, and 0.6% off."""

BLOCK = 32
"""Terms that share a scale; divides the width of nearly every model."""

_LEAST = 32
"""Weights with fewer output channels stay as they are."""

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = dict[str, Callable[[], Array]]


@dataclass(frozen=True)
class Packed:
    """A weight ``[N, K]``: codes ``[N, J, BLOCK * bits / 8]``, scales and zero points by block."""

    codes: Array
    scales: Array
    zeros: Array


def quantise_files(
    files: Mapping[str, Made], kind: str
) -> tuple[dict[str, Made], dict[str, NDArray[np.float64]], int]:
    """The files with smaller weights, :func:`channel_errors` of each, and how many matrices it has.

    Files that share a weight share its packed form.
    """
    packs = _Packs(KINDS[kind])
    made = {name: _Rewriter(file, packs).rewritten() for name, file in files.items()}
    return made, packs.errors, len(packs.matrices)


def pack(weight: Array, bits: int) -> Packed:
    """The form of a weight ``[N, K]`` that ``MatMulNBits`` reads, by ONNX Runtime's quantizer.

    This is the kernel that its ``MatMulNBitsQuantizer`` calls for each matrix.
    """
    from onnxruntime.capi import _pybind_state as kernels

    N, K = weight.shape
    J = -(-K // BLOCK)
    turned = np.zeros((J * BLOCK, N), weight.dtype)
    turned[:K] = weight.T
    codes = np.zeros((N, J, BLOCK * bits // 8), np.uint8)
    zeros = np.zeros((N, -(-J * bits // 8)), np.uint8)
    scales = np.zeros((N, J), weight.dtype)
    quantize = kernels.quantize_matmul_4bits if bits == 4 else kernels.quantize_matmul_8bits
    quantize(codes, turned, scales, zeros, BLOCK, N, K, False)
    return Packed(codes, scales, zeros)


def unpacked(packed: Packed, bits: int, terms: int) -> NDArray[np.float32]:
    """The weight ``[N, K]`` that the operators compute with."""
    N, J = packed.codes.shape[:2]
    codes = _elements(packed.codes.reshape(N, -1), bits).reshape(N, J, BLOCK)
    zeros = _elements(packed.zeros.reshape(N, -1), bits)[:, :J, None]
    scales = packed.scales.astype(np.float32).reshape(N, J, 1)
    found = (codes.astype(np.float32) - zeros.astype(np.float32)) * scales
    return found.reshape(N, J * BLOCK)[:, :terms]


def channel_errors(weight: Array, packed: Packed, bits: int) -> NDArray[np.float64]:
    """``|w - packed w| / |w|`` of each output channel, in the Euclidean norm; 0 for all zeros."""
    exact = weight.astype(np.float32)
    size = np.linalg.norm(exact, axis=1).astype(np.float64)
    difference = np.linalg.norm(exact - unpacked(packed, bits, weight.shape[1]), axis=1)
    errors: NDArray[np.float64] = np.zeros_like(size)
    np.divide(difference, size, out=errors, where=size > 0)
    return errors


def _elements(content: Array, bits: int) -> Array:
    """Bytes ``[N, n]`` taken apart, the low bits first."""
    if bits == 8:
        return content
    return np.stack([content & 15, content >> 4], axis=-1).reshape(len(content), -1)


class _Packs:
    """Every weight packed once, whoever asks, with what that costs."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self.errors: dict[str, NDArray[np.float64]] = {}
        self.matrices: set[str] = set()
        self._packed: dict[str, Packed] = {}

    def bits(self, *, table: bool) -> int:
        """Of an element of a weight."""
        return _TABLE_BITS if table else self._bits

    def of(self, name: str, weight: Array, bits: int) -> Packed:
        """The packed form of an initializer, given as ``[N, K]``."""
        if name not in self._packed:
            self._packed[name] = pack(weight, bits)
            self.errors[name] = channel_errors(weight, self._packed[name], bits)
        return self._packed[name]


@dataclass(frozen=True)
class _Use:
    """Nodes that read one weight: products of it, its transposes, and tables that are gathered."""

    products: list[NodeProto]
    turns: list[NodeProto]
    tables: list[NodeProto]


class _Rewriter:
    """One file: its weights that nothing but products and embeddings read get smaller."""

    def __init__(self, made: Made, packs: _Packs) -> None:
        self._nodes = list(made.model.graph.node)
        self._made, self._packs = made, packs
        self._arrays: Arrays = dict(made.arrays)
        self._readers: dict[str, list[NodeProto]] = {}
        for node in self._nodes:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        inner = {name for node in self._nodes for name in _inner_names(node)}
        self._fixed = inner | {output.name for output in made.model.graph.output}

    def rewritten(self) -> Made:
        """The file with packed weights; the one given stays as it is."""
        replaced: dict[int, list[NodeProto]] = {}
        for name, make in self._made.arrays.items():
            array = make()  # Once: it may have to be read from a file of another format.
            if array.ndim != 2:
                continue
            self._packs.matrices.add(name)
            if (use := self._use(name)) is not None and self._is_worth(use, array):
                replaced.update(self._replaced(name, array, use))
        model = ModelProto()
        model.CopyFrom(self._made.model)
        del model.graph.node[:]
        for node in self._nodes:
            model.graph.node.extend(replaced.get(id(node), [node]))
        if replaced and all(entry.domain != CONTRIB for entry in model.opset_import):
            model.opset_import.append(helper.make_opsetid(CONTRIB, 1))
        return Made(model, self._arrays)

    def _use(self, name: str) -> _Use | None:
        """How a weight is read, if in no other way than can be replaced."""
        use = _Use([], [], [])
        for node in self._readers.get(name, []):
            if _reads(node, name, "MatMul", 1):
                use.products.append(node)
            elif _reads(node, name, "Gather", 0) and _attribute(node, "axis", 0) == 0:
                use.tables.append(node)
            elif node.op_type == "Transpose" and self._only_products(node):
                use.turns.append(node)
            else:
                return None
        if name in self._fixed or bool(use.products) == bool(use.turns or use.tables):
            return None
        return use

    def _only_products(self, turn: NodeProto) -> bool:
        """Whether a transpose is the weight of products and nothing else."""
        name = turn.output[0]
        readers = self._readers.get(name, [])
        return name not in self._fixed and all(_reads(n, name, "MatMul", 1) for n in readers)

    def _is_worth(self, use: _Use, array: Array) -> bool:
        if array.dtype not in (np.float32, np.float16):
            return False
        N, K = array.shape[::-1] if use.products else array.shape
        # A table has no room for what fills the last block.
        return N >= _LEAST and K >= BLOCK and (not use.tables or K % BLOCK == 0)

    def _replaced(self, name: str, array: Array, use: _Use) -> dict[int, list[NodeProto]]:
        """What stands for the nodes that read a weight, by their identity."""
        weight = array.T if use.products else array
        bits = self._packs.bits(table=bool(use.tables))
        packed = self._packs.of(name, weight, bits)
        del self._arrays[name]
        found: dict[int, list[NodeProto]] = {id(turn): [] for turn in use.turns}
        products = [*use.products, *(n for t in use.turns for n in self._readers[t.output[0]])]
        if products:
            names = self._store(name, packed, bits, table=False)
            found.update({id(n): [_product(n, names, bits, weight.shape)] for n in products})
        if use.tables:
            names = self._store(name, packed, bits, table=True)
            found.update({id(node): [_table(node, names, bits)] for node in use.tables})
        return found

    def _store(self, name: str, packed: Packed, bits: int, *, table: bool) -> list[str]:
        """Make the parts initializers; a table has its codes and zero points by row."""
        N = len(packed.codes)
        parts = {"": packed.codes, ":scales": packed.scales, ":zeros": packed.zeros}
        names = []
        for part, array in parts.items():
            shaped = array.reshape(N, -1) if table or part else array
            full = f"{name}:int{bits}{':rows' if table and not part else ''}{part}"
            self._arrays[full] = _Kept(shaped)
            names.append(full)
        return names


def _product(node: NodeProto, names: Sequence[str], bits: int, shape: tuple[int, ...]) -> NodeProto:
    """``MatMulNBits`` in the place of a ``MatMul`` whose weight ``[N, K]`` has this shape."""
    N, K = shape
    sizes = {"N": N, "K": K, "accuracy_level": _ACCURACY}
    return _in_place_of(node, "MatMulNBits", [node.input[0], *names], bits, sizes)


def _table(node: NodeProto, names: Sequence[str], bits: int) -> NodeProto:
    """``GatherBlockQuantized`` in the place of a ``Gather``."""
    codes, scales, zeros = names
    inputs, axes = [codes, node.input[1], scales, zeros], {"gather_axis": 0, "quantize_axis": 1}
    return _in_place_of(node, "GatherBlockQuantized", inputs, bits, axes)


def _in_place_of(
    node: NodeProto, kind: str, inputs: Sequence[str], bits: int, more: Mapping[str, Any]
) -> NodeProto:
    """An operator of ONNX Runtime on blocks of codes, with the name and results of a node."""
    return helper.make_node(
        kind,
        inputs,
        node.output,
        name=node.name,
        domain=CONTRIB,
        doc_string=node.doc_string,
        bits=bits,
        block_size=BLOCK,
        **more,
    )


@dataclass(frozen=True)
class _Kept:
    """An array that is there already, as one that is made on demand."""

    array: Array

    def __call__(self) -> Array:
        return self.array


def _reads(node: NodeProto, name: str, kind: str, place: int) -> bool:
    """Whether a node of a kind reads a name at this place and at no other."""
    places = [i for i, given in enumerate(node.input) if given == name]
    return node.op_type == kind and node.domain == "" and places == [place]


def _attribute(node: NodeProto, name: str, otherwise: int) -> int:
    found = (attribute.i for attribute in node.attribute if attribute.name == name)
    return int(next(found, otherwise))


def _inner_names(node: NodeProto) -> Iterator[str]:
    """Every name that the bodies of a node read or return."""
    for attribute in node.attribute:
        if attribute.type != AttributeProto.GRAPH:
            continue
        yield from (output.name for output in attribute.g.output)
        for inner in attribute.g.node:
            yield from inner.input
            yield from _inner_names(inner)
