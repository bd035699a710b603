"""Hypothesis strategy: random typed graphs that run, of every kind of op, with their inputs.

A *smooth* program has no op that turns a rounding error into a jump (no comparison, rounding or
index of floats) and no value that grows without end, so that its results can be compared closely.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tests.ir.op_samples import SAMPLES, Fill, Sample
from tests.ir.random_ops import Pool, apply_some_op

from seqmix_ir import show
from seqmix_ir.builder import Builder
from seqmix_ir.defn import Array, Example
from seqmix_ir.dims import Size, ceildiv, dim, evaluate_size, floordiv, maximum_size, minimum_size
from seqmix_ir.graph import DimInfo, Graph, Module, Value
from seqmix_ir.interpret import NUMPY_DTYPES
from seqmix_ir.ops import CORE_OPS
from seqmix_ir.types import FLOATS, DType, TensorType

__all__ = ["BOUND", "Program", "programs"]

B, S, P = dim("B"), dim("S"), dim("P")
BOUND = ({"B": 2, "S": 5, "P": 3}, {"B": 1, "S": 1, "P": 0}, {"B": 3, "S": 2, "P": 1})
_HEADERS: dict[str, tuple[tuple[int, int | None], ...]] = {
    "B": ((1, None), (0, 3)),
    "S": ((1, None), (1, 64), (1, 5)),
    "P": ((0, None), (0, 64), (0, 3)),
}
_SIZES: tuple[Size, ...] = (
    1,
    2,
    3,
    B,
    S,
    P,
    P + S,
    2 * S,
    ceildiv(S, 2),
    floordiv(P + S, 3),
    minimum_size(P + S, 4096),
    minimum_size(S, 3),
    maximum_size(P, 2),
)
_DTYPES: tuple[DType, ...] = ("f32", "f32", "f32", "f64", "bf16", "i64", "bool")
_MIXERS = tuple(s for s in SAMPLES if s.defn.decompositions())
_SAMPLED = {type(s.defn) for s in SAMPLES}
# Ops that have no samples with symbolic sizes yet show examples of fixed sizes.
_EXAMPLES = tuple(
    example
    for cls in CORE_OPS
    if cls not in _SAMPLED
    for example in cls.examples(np.random.default_rng(0))
    if example.body is None and example.defn.decompositions()
)


@dataclass
class Program:
    """A module with one graph ``main``, and what to feed it."""

    module: Module
    fills: Mapping[str, Fill] = field(default_factory=dict)

    def __repr__(self) -> str:
        return show(self.module)

    def inputs(self, sizes: Mapping[str, int], special: bool = False) -> dict[str, Array]:
        """Arrays for ``main``; ``special`` ones hold infinities, NaN and -0.0 here and there."""
        rng = np.random.default_rng(sum(sizes.values()))
        made = {}
        for name, value in self.module.graph("main").inputs.items():
            shape = tuple(evaluate_size(s, sizes) for s in value.type.shape)
            fill = self.fills.get(name, _plain)
            array = np.asarray(fill(rng, shape))
            if special and fill is _plain and value.type.dtype in FLOATS:
                array = _with_special(rng, array)
            made[name] = array.astype(NUMPY_DTYPES[value.type.dtype])
        return made

    def weights(self) -> dict[str, Array]:
        rng = np.random.default_rng(5)
        return {
            key: rng.standard_normal(type.shape).astype(NUMPY_DTYPES[type.dtype])
            for key, type in self.module.weights().items()
        }


def _plain(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return np.round(rng.standard_normal(shape), 1) + 0.0


def _with_special(rng: np.random.Generator, array: Array) -> Array:
    special = rng.choice([np.inf, -np.inf, np.nan, -0.0, 0.0], array.shape)
    return np.where(rng.random(array.shape) < 0.2, special, array)


@st.composite
def programs(draw: st.DrawFn, smooth: bool = False, mixers: bool = True) -> Program:
    """Graphs of a few ops with unread, repeated and shared ones among them."""
    b = Builder()
    params = [Value(TensorType("bool", (B, S, P)), "sizes")]
    fills: dict[str, Fill] = {}
    for i in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.sampled_from(_SIZES), max_size=3)))
        params.append(Value(TensorType(draw(st.sampled_from(_DTYPES)), shape), f"in{i}"))
    pool = Pool(b, list(params), smooth)
    for _ in range(draw(st.integers(2, 12))):
        if mixers and draw(st.integers(0, 5)) == 0:
            _apply_mixer(draw, pool, params, fills)
        elif b.ops and draw(st.integers(0, 7)) == 0:
            again = draw(st.sampled_from(b.ops))
            pool.values.extend(b.emit(again.defn, *again.operands, body=again.body))
        else:
            apply_some_op(draw, pool)
    results = draw(st.lists(st.sampled_from(pool.values), min_size=1, max_size=3))
    results.append(pool.values[-1])
    names = tuple(f"out{i}" for i in range(len(results)))
    dims = tuple(DimInfo(n, *draw(st.sampled_from(ends))) for n, ends in _HEADERS.items())
    graph = Graph("main", b.block(params, results), names, dims)
    return Program(Module("random", (graph,)), fills)


def _apply_mixer(draw: st.DrawFn, pool: Pool, params: list[Value], fills: dict[str, Fill]) -> None:
    """Apply an op that has a decomposition, to values of the right types or to new inputs."""
    choice: Sample | Example = draw(st.sampled_from([*_MIXERS, *_EXAMPLES]))
    sample = choice if isinstance(choice, Sample) else _as_sample(choice)
    operands: list[Value | None] = []
    for i, type in enumerate(sample.types):
        fitting = [v for v in pool.values if v.type == type and i not in sample.fills]
        if type is None:
            operands.append(None)
        elif fitting and draw(st.booleans()):
            operands.append(draw(st.sampled_from(fitting)))
        else:
            params.append(Value(type, f"in{len(params)}"))
            if i in sample.fills:
                fills[params[-1].hint] = sample.fills[i]
            operands.append(params[-1])
    pool.add(*pool.b.emit(sample.defn, *operands, body=sample.body))


def _as_sample(example: Example) -> Sample:
    """An example with the arrays that it brings as inputs."""
    types: list[TensorType | None] = []
    fills: dict[int, Fill] = {}
    for i, array in enumerate(example.operands):
        if array is None:
            types.append(None)
            continue
        dtype: Any = {"f": "f32", "i": "i64", "b": "bool"}[array.dtype.kind]
        types.append(TensorType(dtype, array.shape))
        fills[i] = _constantly(array)
    return Sample(example.defn, tuple(types), fills)


def _constantly(array: Array) -> Fill:
    return lambda rng, shape: array
