"""Samples of ops in integer types, and what ops are in float64."""

from __future__ import annotations

import dataclasses

from tests.ir.op_samples import B, P, S, Sample, below

from seqmix_ir import ops
from seqmix_ir.types import DType, TensorType

__all__ = ["integer_samples", "widened"]


def integer_samples(dtype: DType) -> list[Sample]:
    """Ops on integers of a type, with values that stay in its range."""
    x, row = TensorType(dtype, (B, S)), TensorType(dtype, (S,))
    wide, i32 = TensorType(dtype, (B, 7)), TensorType("i32", (B, S))
    index = {1: below(7)}
    samples = [
        Sample(ops.Add(), (x, row)),
        Sample(ops.Maximum(), (x, row)),
        Sample(ops.Less(), (x, row)),
        Sample(ops.Mod(), (x, row), {1: below(7, 1)}),
        Sample(ops.FloorDiv(), (x, row), {1: below(7, 1)}),
        Sample(ops.Where(), (TensorType("bool", (B, 1)), x, row)),
        Sample(ops.Reduce("sum", (1,), False), (x,)),
        Sample(ops.Reduce("prod", (0,), True), (x,)),
        Sample(ops.Reduce("max", (1,), False), (x,)),
        Sample(ops.CumSum(1), (x,)),
        Sample(ops.Matmul(), (x, TensorType(dtype, (S, 3)))),
        Sample(ops.Pad(1, 1, P, 1.0), (x,)),
        Sample(ops.Gather(1), (wide, i32), index),
        Sample(ops.GatherElements(1), (wide, i32), index),
        Sample(ops.ScatterElements(1, "add"), (wide, i32, x), index),
        Sample(ops.Iota(S + P, dtype)),
        Sample(ops.Cast("f32"), (x,)),
        Sample(ops.Cast("bf16"), (x,)),
    ]
    if dtype != "u8":
        return samples
    return [
        dataclasses.replace(
            sample, fills={**{i: below(5) for i in range(len(sample.types))}, **sample.fills}
        )
        for sample in samples
    ]


def widened(sample: Sample, dtype: DType) -> Sample:
    """In float64 an op that accumulates does so in float64."""
    if dtype != "f64" or "accumulate" not in sample.defn.attributes():
        return sample
    changed = dataclasses.replace(sample.defn, accumulate="f64")  # type: ignore[type-var]
    return dataclasses.replace(sample, defn=changed)
