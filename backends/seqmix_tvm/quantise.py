"""Weights in a smaller type than the model's: written into the graph as what they are widened from.

A product reads its weight ``[N, K]`` through the ops that widen it, which its kernel takes in as it
goes; an embedding gathers rows and widens those::

    linear(x, cast(weight("w:bf16")), bias)
    linear(x, cast(weight("w:int8")) * unsqueeze(weight("w:scale"), 1), bias)

For int8, ``q = round(w / s)`` with ``s = max |w| / 127`` of each output channel: no element is off
by more than ``s / 2``. The graph is one like any other, so that every backend computes it, and the
judge says what the smaller weights do to a model.

N output channels, K terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from seqmix.backend import Program
from seqmix.weights import Weights
from seqmix_ir.builder import Builder
from seqmix_ir.defn import OpDef
from seqmix_ir.graph import Block, Module, Op, Value
from seqmix_ir.ops import Cast, Gather, Mul, Unsqueeze, Weight
from seqmix_ir.ops.rules import normal_axis
from seqmix_ir.passes import dce, rewrite_module
from seqmix_ir.types import DType, TensorType

__all__ = [
    "KINDS",
    "channel_errors",
    "quantise_program",
    "rounded",
    "rounding_errors",
    "stored_weight",
]

KINDS: Mapping[str, DType] = {"bf16": "bf16", "f16": "f16", "int8": "i8"}
"""The kinds of smaller weights, by the type of their elements."""

_NARROWER: Mapping[DType, tuple[str, ...]] = {
    "f32": ("bf16", "f16", "int8"),
    "bf16": ("int8",),
    "f16": ("int8",),
}
"""The kinds that are smaller than each type of a model."""

_LEAST = 32
"""Weights with fewer output channels stay as they are: gates, which cost little and matter much."""

_LEVELS = 127


def quantise_program(program: Program, kind: str) -> tuple[Program, list[str]]:
    """The program with smaller weights, and which: those that only products and embeddings read.

    Weights inside the body of a scan stay as they are: their error would grow with each step.
    """
    chosen = _chosen(program.module, kind)
    module = dce(rewrite_module(program.module, _Rewrite(chosen, kind)))
    weights = _Rounded(program.weights, chosen, kind)
    return Program(module, weights, program.config, program.model), list(chosen)


def rounded(weight: NDArray[Any], kind: str) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
    """A weight ``[N, K]`` in a smaller type, and for int8 the scales ``[N]`` that it is times."""
    if kind != "int8":
        return weight.astype(ml_dtypes.bfloat16 if kind == "bf16" else np.float16), None
    wide = weight.astype(np.float32)
    scale = np.abs(wide).max(axis=1, initial=0) / np.float32(_LEVELS)
    # A channel of zeros has no scale, and needs none.
    usable = np.where(scale > 0, scale, np.float32(1))
    whole = np.rint(wide / usable[:, None]).clip(-_LEVELS, _LEVELS)
    return whole.astype(np.int8), scale


def channel_errors(weight: NDArray[Any], kind: str) -> NDArray[np.float64]:
    """``|w - rounded w| / |w|`` of each output channel, in the Euclidean norm; 0 for all zeros."""
    stored, scale = rounded(weight, kind)
    exact, found = weight.astype(np.float32), stored.astype(np.float32)
    found = found if scale is None else found * scale[:, None]
    size = np.linalg.norm(exact, axis=1).astype(np.float64)
    difference = np.linalg.norm(exact - found, axis=1)
    errors: NDArray[np.float64] = np.zeros_like(size)
    np.divide(difference, size, out=errors, where=size > 0)
    return errors


def rounding_errors(
    weights: Weights, names: Sequence[str], kind: str
) -> dict[str, dict[str, float]]:
    """The mean and the largest of :func:`channel_errors` of each weight."""
    found = {}
    for name in names:
        errors = channel_errors(weights.numpy(name), kind)
        found[name] = {"mean": float(errors.mean()), "largest": float(errors.max())}
    return found


def stored_weight(
    value: Value | None, producer: Callable[[Value], Op | None]
) -> tuple[Value | None, Value | None]:
    """What lies in memory of a product's weight, and the scales of its rows where it has some.

    ``producer`` says which op makes a value, None for one that is given.
    """

    def operands(of: Value | None, name: str) -> tuple[Value | None, ...]:
        op = None if of is None else producer(of)
        return op.operands if op is not None and op.name == name else ()

    inner = operands(value, "cast")
    if inner and _widens(inner[0], value):
        return inner[0], None
    factors = operands(inner[0] if inner else value, "mul")
    if len(factors) != 2:
        return value, None
    quantised, scale = operands(factors[0], "cast"), operands(factors[1], "unsqueeze")
    if not quantised or not scale or not _is(quantised[0], "i8"):
        return value, None
    return quantised[0], scale[0]


def _widens(narrow: Value | None, wide: Value | None) -> bool:
    return _is(wide, "f32") and (_is(narrow, "bf16") or _is(narrow, "f16"))


def _is(value: Value | None, dtype: DType) -> bool:
    return value is not None and value.type.dtype == dtype


class _Rewrite:
    """Puts the form of a smaller weight in its place, and once more in front of each reader."""

    def __init__(self, chosen: Mapping[str, TensorType], kind: str) -> None:
        self._chosen = chosen
        self._kind = kind

    def __call__(self, b: Builder, op: Op) -> tuple[Value, ...] | None:
        if isinstance(op.defn, Weight):
            return self._stored(b, op.defn.key)
        place = {"linear": 1, "gather": 0}.get(op.name)
        given = None if place is None else op.operands[place]
        stored, scale = stored_weight(given, lambda v: b.producer(v, OpDef))
        if stored is None or stored is given:
            return None
        dtype = op.results[0].type.dtype
        if op.name == "gather":
            rows = b(Gather(0), stored, op.operands[1])
            scale = None if scale is None else b(Gather(0), scale, op.operands[1])
            return (_widened(b, rows, scale, dtype),)
        x, _, bias = op.operands
        return b.emit(op.defn, x, _widened(b, stored, scale, dtype), bias)

    def _stored(self, b: Builder, key: str) -> tuple[Value, ...] | None:
        type = self._chosen.get(key)
        if type is None:
            return None
        small = TensorType(KINDS[self._kind], type.shape)
        stored = b(Weight(f"{key}:{self._kind}", small))
        if self._kind != "int8":
            return (_widened(b, stored, None, type.dtype),)
        scale = b(Weight(f"{key}:scale", TensorType("f32", type.shape[:1])))
        return (_widened(b, stored, scale, type.dtype),)


def _widened(b: Builder, stored: Value, scale: Value | None, dtype: DType) -> Value:
    """``stored * scale`` in the type of the model, rounded once."""
    if scale is None:
        return b(Cast(dtype), stored)
    wide = b(Mul(), b(Cast("f32"), stored), b(Unsqueeze((scale.type.rank,)), scale))
    return wide if dtype == "f32" else b(Cast(dtype), wide)


def _chosen(module: Module, kind: str) -> dict[str, TensorType]:
    """The type of each weight that is a matrix, large enough, and read as one only."""
    found: dict[str, TensorType] = {}
    refused: set[str] = set()
    for graph in module.graphs:
        refused |= _inside_of_bodies(graph.block)
        keys = {op.results[0]: op.defn.key for op in graph.block.ops if isinstance(op.defn, Weight)}
        found.update({key: value.type for value, key in keys.items()})
        refused |= {keys[v] for v in graph.block.results if v in keys}
        for op in graph.block.ops:
            for place, value in enumerate(op.operands):
                if value in keys and not _reads_rows(op, place):
                    refused.add(keys[value])
    return {key: t for key, t in found.items() if key not in refused and _is_worth(t, kind)}


def _inside_of_bodies(block: Block) -> set[str]:
    outside = set(block.ops)
    inner = (op for op in block.walk() if op not in outside)
    return {op.defn.key for op in inner if isinstance(op.defn, Weight)}


def _reads_rows(op: Op, place: int) -> bool:
    """Whether an operand is read as output channels: a product's weight, a table's rows."""
    if op.name == "linear":
        return place == 1
    return op.name == "gather" and place == 0 and _first_axis(op)


def _first_axis(op: Op) -> bool:
    return normal_axis(op.defn.attributes()["axis"], op.values[0].type.rank) == 0


def _is_worth(type: TensorType, kind: str) -> bool:
    if type.rank != 2 or kind not in _NARROWER.get(type.dtype, ()):
        return False
    N = type.shape[0]
    return isinstance(N, int) and N >= _LEAST


class _Rounded(Weights):
    """Weights some of which are rounded whenever they are read."""

    def __init__(self, weights: Weights, chosen: Mapping[str, TensorType], kind: str) -> None:
        loaders: dict[str, Callable[[], NDArray[Any]]] = {}
        for name in weights.names():
            if name not in chosen:
                loaders[name] = _Loader(weights, name)
                continue
            loaders[f"{name}:{kind}"] = _Loader(weights, name, kind, 0)
            if kind == "int8":
                loaders[f"{name}:scale"] = _Loader(weights, name, kind, 1)
        super().__init__(loaders)


class _Loader:
    """One array of what a weight is rounded to."""

    def __init__(self, weights: Weights, name: str, kind: str = "", part: int = 0) -> None:
        self._weights = weights
        self._name = name
        self._kind = kind
        self._part = part

    def __call__(self) -> NDArray[Any]:
        found = self._weights.numpy(self._name)
        made = rounded(found, self._kind)[self._part] if self._kind else found
        return found if made is None else made
