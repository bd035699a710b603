"""Every rule against differences in float64: in the loop, before it, and of a constant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tests.ir.adjoint_cases import Loop, check_gradients, is_float
from tests.ir.op_samples import SAMPLES, SIZES, Sample

from seqmix_ir import ops
from seqmix_ir.adjoint import RULES
from seqmix_ir.builder import Builder
from seqmix_ir.defn import OpDef
from seqmix_ir.dims import Dim, evaluate_size
from seqmix_ir.graph import Value
from seqmix_ir.ops import constant
from seqmix_ir.types import TensorType

STEPS = 3
PLACES = (
    "carry",
    pytest.param("sequence", marks=pytest.mark.full),
    pytest.param("constant", marks=pytest.mark.full),
)
STEEP = (ops.Floor, ops.Ceil, ops.Round, ops.Sign)


def usable(sample: Sample) -> bool:
    """Whether the op has a rule and a float to differentiate by."""
    defn = sample.defn
    refused = isinstance(defn, ops.ScatterElements) and defn.reduction == "max"
    # What rounds to 16 bits has no differences to compare with.
    rounds = isinstance(defn, ops.Cast) and defn.dtype != "f64"
    return type(defn) in RULES and any(map(is_float, sample.types)) and not (refused or rounds)


def fixed(sample: Sample) -> Sample:
    """The sample in float64 with numbers for its sizes."""
    sizes = SIZES[0]
    wide = sample.with_floats("f64")
    types = tuple(
        None if t is None else t.with_shape(tuple(evaluate_size(s, sizes) for s in t.shape))
        for t in wide.types
    )
    return Sample(_sized(sample.defn, sizes), types, sample.fills)


def _sized(defn: OpDef, sizes: Mapping[str, int]) -> OpDef:
    def value(v: Any) -> Any:
        if isinstance(v, Dim):
            return evaluate_size(v, sizes)
        return tuple(map(value, v)) if isinstance(v, tuple) else v

    return type(defn)(**{k: value(v) for k, v in defn.attributes().items()})


def loop_of(sample: Sample, place: str) -> Loop:
    """A scan that applies the op in every step; ``place`` says where its floats come from."""
    types = [t for t in sample.types if t is not None]
    first = next(t for t in types if is_float(t))
    moving = place != "constant"
    seq = [t for t in types if is_float(t) and moving]
    same = [t for t in types if not (is_float(t) and moving)]
    scalar = TensorType("f64", ())
    params = [Value(t) for t in (first, *seq, scalar, *same)]
    h, *rest = params
    slices, s, constants = rest[: len(seq)], rest[len(seq)], rest[len(seq) + 1 :]
    b, left, right = Builder(), list(slices), list(constants)
    operands = [
        None if t is None else (left if is_float(t) and moving else right).pop(0)
        for t in sample.types
    ]
    half = constant(b, 0.5, "f64")
    if place == "carry":
        at = next(i for i, t in enumerate(sample.types) if is_float(t))
        tiny = b(ops.Mul(), b(ops.Sigmoid(), h), constant(b, 0.01, "f64"))
        operands[at] = b(ops.Add(), operands[at], tiny)
    results = b.emit(sample.defn, *operands)
    new = b(ops.Mul(), b(ops.Add(), h, s), half)
    for r in results:
        if is_float(r.type) and r.type.rank:
            axes = tuple(range(r.type.rank))
            mean = b(ops.Reduce("mean", axes, False), b(ops.Tanh(), r))
            new = b(ops.Add(), new, mean)
    body = b.block(params, (new, *results))
    scan = ops.Scan(1, len(seq) + 1, 0)
    stacked = [t.with_shape((STEPS, *t.shape)) for t in (*seq, scalar)]
    return Loop.of(scan, (first, *stacked, *same), body, _arrays(sample, first, place))


def _arrays(sample: Sample, first: TensorType, place: str) -> Sequence[np.ndarray]:
    rng = np.random.default_rng(3)
    moving = place != "constant"
    draws = [sample.inputs(SIZES[0], seed) for seed in range(STEPS)]
    names = [f"x{i}" for i, t in enumerate(sample.types) if t is not None]
    kinds = [t for t in sample.types if t is not None]
    seq = [n for n, t in zip(names, kinds, strict=True) if is_float(t) and moving]
    same = [n for n in names if n not in seq]
    stacked = [np.stack([d[n] for d in draws]) for n in seq]
    start = rng.standard_normal(first.shape)
    return [start, *stacked, rng.standard_normal(STEPS), *(draws[0][n] for n in same)]


CASES = [s for s in SAMPLES if usable(s)]


def test_every_rule_has_a_sample() -> None:
    assert {type(s.defn) for s in CASES} == set(RULES)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("sample", CASES, ids=str)
def test_each_rule_is_the_slope(sample: Sample, place: str) -> None:
    loop = loop_of(fixed(sample), place)
    if isinstance(sample.defn, STEEP):
        check_gradients(loop, step=1e-9, tolerance=1e-5)
        return
    check_gradients(loop)
