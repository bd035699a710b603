"""Sizes and shapes that kernels of the tvm backend must not stumble over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tests.backends.needs_tvm  # noqa: F401  # skips
from tests.backends.tvm_graphs import agree, compile_module
from tests.ir.op_samples import DIMS, B, P, S, graph_module

from seqmix.errors import BackendError
from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.dims import ceildiv, dim, isqrt, maximum_size, minimum_size
from seqmix_ir.graph import DimInfo, Value
from seqmix_ir.ops import constant
from seqmix_ir.types import TensorType

RNG = np.random.default_rng(4)


def f32(*shape: Any) -> TensorType:
    return TensorType("f32", shape)


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("f4")


def test_roots_quotients_and_extrema_of_sizes() -> None:
    x, past = Value(f32(B, S), "x"), Value(f32(B, P), "past")
    rows = maximum_size(isqrt(3 * S + P), minimum_size(S, 5))
    blocks = ceildiv(rows + P, 4)
    b = Builder()
    steps = b(ops.Cast("f32"), b(ops.Iota(rows)))
    grown = b(ops.Mul(), b(ops.Slice(1, 0, 1), x), b(ops.Unsqueeze((0,)), steps))
    padded = b(ops.Pad(1, 0, 4 * blocks - rows), b(ops.Tanh(), grown))
    cut = b(ops.Reshape((B, blocks, 4)), padded)
    y = b(ops.Reduce("sum", (1,), False), cut)
    module = graph_module(b, [x, past], [y, b(ops.Exp(), cut)])
    executable = compile_module(module)
    for new, old in ((1, 0), (3, 0), (16, 1), (65, 130), (300, 2)):
        agree(module, executable, {"x": numbers(2, new), "past": numbers(2, old)})


def test_a_size_that_no_axis_shows() -> None:
    x = Value(f32(B, S + dim("Q")), "x")
    b = Builder()
    part = b(ops.Exp(), b(ops.Slice(1, 0, dim("Q")), x))
    module = graph_module(b, [x], [part], (*DIMS, DimInfo("Q", min=0)))
    with pytest.raises(BackendError, match="no input of the graph has an axis of size Q alone"):
        compile_module(module)


def test_axes_of_no_elements() -> None:
    nothing, x = Value(f32(B, 3, 0), "nothing"), Value(f32(B, 3, 2), "x")
    b = Builder()
    turned = b(ops.Exp(), b(ops.Transpose((2, 0, 1)), nothing))
    joined = b(ops.Concat(2), nothing, b(ops.Neg(), x), nothing)
    total = b(ops.Reduce("sum", (2,), False), nothing)
    module = graph_module(b, [nothing, x], [turned, joined, total])
    executable = compile_module(module)
    agree(module, executable, {"nothing": numbers(2, 3, 0), "x": numbers(2, 3, 2)})


@pytest.mark.parametrize(("heads", "size"), [(3, 5), (3, 16), (2, 1)])
def test_products_whose_columns_are_taken_apart(heads: int, size: int) -> None:
    """Columns become heads, which a mask and a factor of each head's own go along with."""
    x, mask = Value(f32(B, S, 7), "x"), Value(TensorType("i64", (B, S)), "mask")
    factor = Value(f32(B, heads, S), "factor")
    b = Builder()
    weight = b(ops.Weight("w", f32(heads * size, 7)))
    y = b(ops.Reshape((B, S, heads, size)), b(ops.Linear(), x, weight, None))
    y = b(ops.Transpose((0, 2, 1, 3)), y)
    y = b(ops.Mul(), y, b(ops.Exp(), b(ops.Unsqueeze((3,)), factor)))
    seen = b(ops.GreaterEqual(), mask, constant(b, 0, "i64"))
    seen = b(ops.Unsqueeze((1, 3)), seen)
    y = b(ops.Where(), seen, y, constant(b, 0.0, "f32"))
    module = graph_module(b, [x, mask, factor], [y])
    weights = {"w": numbers(heads * size, 7)}
    executable = compile_module(module, weights)
    for batch, new in ((1, 1), (2, 5), (3, 9)):
        inputs = {
            "x": numbers(batch, new, 7),
            "mask": RNG.integers(-1, 2, (batch, new)),
            "factor": numbers(batch, heads, new),
        }
        agree(module, executable, inputs, weights)


def test_a_maximum_in_float64_times_a_float32() -> None:
    x, y = Value(TensorType("f64", (B, S)), "x"), Value(f32(B, S), "y")
    b = Builder()
    top = b(ops.Maximum(), x, constant(b, 1.0, "f64"))
    module = graph_module(b, [x, y], [b(ops.Mul(), y, b(ops.Cast("f32"), top))])
    inputs = {"x": RNG.standard_normal((2, 9)), "y": numbers(2, 9)}
    agree(module, compile_module(module), inputs)


def test_a_quotient_by_a_choice() -> None:
    x, keep = Value(f32(B, S), "x"), Value(TensorType("bool", (B, S)), "keep")
    b = Builder()
    one = constant(b, 1.0, "f32")
    chosen = b(ops.Where(), keep, one, x)
    y = b(ops.Mul(), x, b(ops.Div(), x, chosen))
    module = graph_module(b, [x, keep], [b(ops.Where(), keep, x, y)])
    given = {"x": numbers(2, 9), "keep": RNG.random((2, 9)) < 0.5}
    agree(module, compile_module(module), given)
