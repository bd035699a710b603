"""What inference refuses, and how it says so."""

from __future__ import annotations

from typing import Any

import pytest
from tests.ir.op_samples import B, P, S, boolean, f32, i64, lstm_like

from seqmix_ir import ops
from seqmix_ir.builder import Builder, trace_block
from seqmix_ir.dims import ceildiv, dim
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Value
from seqmix_ir.types import Loc, TensorType

T = dim("T")
X = f32(B, S, 6)
Q, K, V = f32(B, 6, S, 4), f32(B, 2, T, 4), f32(B, 2, T, 3)
QP, KP = i64(B, S), i64(B, T)

CASES = [
    (ops.Neg(), (boolean(S),), r"operand 'x' is bool\[S\], expected dtype f64, f32"),
    (ops.Exp(), (i64(S),), r"'x' is i64\[S\], expected dtype f64, f32, f16, bf16; cast"),
    (ops.Not(), (X,), r"expected dtype bool"),
    (ops.Gelu("fast"), (X,), r"approximate is 'fast', expected 'none' or 'tanh'"),
    (ops.Add(), (X, i64(6)), r"dtypes differ: 'x' is f32\[B, S, 6\], 'y' is i64\[6\]"),
    (ops.Add(), (X, f32(5)), r"cannot broadcast 'x' .* with 'y' .*: axis -1 is 6 and 5"),
    (ops.Add(), (f32(S), f32(P)), r"axis -1 is S and P"),
    (ops.Add(), (boolean(S), boolean(S)), r"expected dtype f64"),
    (ops.Div(), (i64(S), i64(S)), r"expected dtype f64, f32, f16, bf16"),
    (ops.Where(), (X, X, X), r"operand 'condition' is f32"),
    (ops.Cast("f33"), (X,), r"unknown dtype 'f33'; did you mean"),
    (ops.Constant(((1, 2), (3,)), "i64"), (), r"ragged: item 0 has shape \(2,\)"),
    (ops.Constant(1.5, "i64"), (), r"constant 1.5 \(float\) is no value of i64"),
    (ops.Constant(300, "u8"), (), r"constant 300 \(int\) is no value of u8"),
    (ops.Constant(True, "f32"), (), r"constant True \(bool\) is no value of f32"),
    (ops.Constant(1, "bool"), (), r"constant 1 \(int\) is no value of bool"),
    (ops.Weight("", X), (), r"a weight needs a key"),
    (ops.Iota(-1), (), r"length -1, expected 0 or more"),
    (ops.Iota(3, "bool"), (), r"not in bool"),
    (ops.Reshape((B, S, 7)), (X,), r"holds 6\*B\*S elements, .* \[B, S, 7\] holds 7\*B\*S"),
    (ops.Reshape((B, -1)), (X,), r"axis 1 of the new shape \[B, -1\] is -1; spell it out"),
    (ops.Transpose((0, 1)), (X,), r"perm \(0, 1\) does not name every axis"),
    (ops.Transpose((0, 1, 3)), (X,), r"axis 3 is out of range for rank 3 \(-3 to 2\)"),
    (ops.Expand((B, S, 7)), (X,), r"axis 2 of f32\[B, S, 6\] is 6; it can become 6 only"),
    (ops.Expand((6,)), (X,), r"has more axes than the new shape \[6\]"),
    (ops.Squeeze((1,)), (X,), r"axis 1 of f32\[B, S, 6\] is S, expected 1"),
    (ops.Unsqueeze((0, 0)), (X,), r"name one axis of rank 5 twice"),
    (ops.Concat(1), (X, f32(B, S, 5)), r"operand 1 is .*: axis 2 is 6 and 5 \(concatenated"),
    (ops.Concat(1), (X, f32(B, S)), r"the ranks differ"),
    (ops.Concat(1), (), r"needs at least one operand"),
    (ops.Slice(2, 0, 7), (X,), r"slice 0:7 does not lie within axis 2 of f32\[B, S, 6\]"),
    (ops.Slice(1, 0, S + 1), (X,), r"slice 0:S \+ 1 does not lie within axis 1"),
    (ops.Slice(2, 4, 3), (X,), r"0 <= start <= stop <= 6"),
    (ops.Slice(2, 0, 6, 0), (X,), r"steps by 0, expected 1 or more"),
    (ops.Pad(0, -1, 0), (X,), r"pad adds -1 elements"),
    (ops.Pad(0, 1, 0, 0.5), (i64(S),), r"pad value 0.5 is no i64"),
    (ops.Matmul(), (X, f32(5, 3)), r"last axis of 'x' .* is 6, the last but one of 'y' .* is 5"),
    (ops.Matmul(), (f32(6), f32(6, 3)), r"'x' is f32\[6\], expected two axes or more"),
    (ops.Matmul("f8"), (X, f32(6, 3)), r"accumulate is 'f8', expected 'f32' or 'f64'"),
    (ops.Linear(), (X, f32(3, 5), None), r"last axis of 'x' .* is 6, 'weight' .* takes 5"),
    (ops.Linear(), (X, f32(3, 6), f32(6)), r"axis 0 of 'bias' \(f32\[6\]\) is 6, expected 3"),
    (ops.Reduce("median", (0,), True), (X,), r"kind is 'median', expected one of sum"),
    (ops.Reduce("sum", (), True), (X,), r"over no axes"),
    (ops.Reduce("any", (0,), True), (X,), r"expected dtype bool"),
    (ops.Reduce("sum", (0, -3), True), (X,), r"name one axis of rank 3 twice"),
    (ops.Softmax(3), (X,), r"axis 3 is out of range for rank 3"),
    (ops.Gather(), (X, f32(S)), r"operand 'indices' is f32\[S\], expected dtype i64, i32"),
    (ops.GatherElements(2), (X, i64(B, T, 1)), r"axis 1 of 'indices' .* is T, expected S"),
    (ops.ScatterElements(2), (X, i64(B, S, 2), f32(B, S, 3)), r"differ in shape"),
    (ops.ScatterElements(2, "mul"), (X, i64(B, S, 2), X), r"reduction is 'mul', expected"),
    (ops.RmsNorm(1e-5), (X, f32(5)), r"axis 0 of 'weight' \(f32\[5\]\) is 5, expected 6"),
    (ops.LayerNorm(1e-5), (X, f32(6), i64(6)), r"operand 'bias' is i64\[6\]"),
    (ops.Attention(), (Q, f32(B, 4, T, 4), V, QP, KP, None, None), r"axis 1 of 'v' .* is 2"),
    (
        ops.Attention(),
        (f32(B, 5, S, 4), K, V, QP, KP, None, None),
        r"'q' has 5 heads, 'k' has 2; the first must be a multiple",
    ),
    (
        ops.Attention(),
        (Q, f32(B, 2, T, 5), V, QP, KP, None, None),
        r"axis 3 of 'k' \(f32\[B, 2, T, 5\]\) is 5, expected 4 \('q' is f32\[B, 6, S, 4\]\)",
    ),
    (ops.Attention(), (Q, K, V, QP, QP, None, None), r"axis 1 of 'key_positions' .* is S, expe"),
    (ops.Attention(), (Q, K, V, QP, KP, f32(S, S), None), r"axis 1 of 'bias' .* is S, expected 1"),
    (ops.Attention(), (Q, K, V, QP, KP, None, f32(2)), r"axis 0 of 'sinks' .* is 2, expected 6"),
    (ops.Attention(window=-1), (Q, K, V, QP, KP, None, None), r"window is -1"),
    (ops.Attention(), (f32(6, S, 4), K, V, QP, KP, None, None), r"expected \[B, H, S, K\]"),
    (ops.Rotary(), (Q, f32(B, S, 3), f32(B, S, 3)), r"so 6 features turn, .* is 4"),
    (ops.Rotary(), (Q, f32(B, T, 2), f32(B, T, 2)), r"axis 1 of 'cos' .* is T, expected S"),
    (
        ops.CausalConv1d(),
        (f32(B, 3, S), f32(3, 4), None, f32(B, 3, 4)),
        r"axis 2 of 'tail' \(f32\[B, 3, 4\]\) is 4, expected 3",
    ),
    (
        ops.CausalConv1d("relu"),
        (f32(B, 3, S), f32(3, 4), None, f32(B, 3, 3)),
        r"activation is 'relu', expected '' or 'silu'",
    ),
    (ops.ClipGradient(0.0), (X,), r"limit is 0.0, expected a number above 0"),
]


def emit(defn: Any, types: Any, body: Any = None) -> Any:
    values = [None if t is None else Value(t) for t in types]
    return Builder(Loc("model.step")).emit(defn, *values, body=body)


@pytest.mark.parametrize(("defn", "types", "message"), CASES, ids=lambda x: str(x)[:50])
def test_refusals(defn: Any, types: Any, message: Any) -> None:
    with pytest.raises(IRError, match=message) as caught:
        emit(defn, types)
    assert str(caught.value).startswith(f"model.step: '{defn.name}' does not accept (")


SCANS = [
    (ops.Scan(1, 0), (f32(3),), r"0 sequences and axis 1; expected"),
    (ops.Scan(1, 1, -1), (f32(B, 3), f32(B, S, 3), f32(3)), r"axis -1; expected"),
    (ops.Scan(1, 2), (f32(3), f32(B, S)), r"1 carries and 2 sequences, got 2 operands"),
    (ops.Scan(1, 1), (f32(B, 3), f32(B, S, 3)), r"takes 3 parameters, expected 2 \(carry 0, sl"),
    (ops.Scan(1, 1), (f32(B, 3), f32(B), f32(3)), r"sequence 0 is f32\[B\]; it has no axis 1"),
    (
        ops.Scan(1, 2),
        (f32(B, 3), f32(B, S, 3), f32(B, T, 3)),
        r"sequence 1 is f32\[B, T, 3\]: axis 1 is S and T",
    ),
    (
        ops.Scan(1, 1),
        (f32(B, 4), f32(B, S, 3), f32(3)),
        r"carry 0 is f32\[B, 4\], the body's parameter for it is f32\[B, 3\]",
    ),
    (
        ops.Scan(1, 1),
        (f32(B, 3), f32(B, S, 4), f32(3)),
        r"slice of sequence 0 is f32\[B, 4\], the body's parameter",
    ),
]


@pytest.mark.parametrize(("defn", "types", "message"), SCANS, ids=lambda x: str(x)[:50])
def test_scan_refusals(defn: Any, types: Any, message: Any) -> None:
    body = trace_block([f32(B, 3), f32(B, 3), f32(3)], lstm_like)
    with pytest.raises(IRError, match=message):
        emit(defn, types, body)


def test_a_carry_that_changes_its_type_is_refused() -> None:
    body = trace_block([f32(B, 3), f32(B, 3)], lambda b, h, x: b(ops.Cast("f16"), h))
    message = r"carry 0 enters the body as f32\[B, 3\] and leaves it as f16\[B, 3\]"
    with pytest.raises(IRError, match=message):
        emit(ops.Scan(1, 1), (f32(B, 3), f32(B, S, 3)), body)


def test_a_body_that_returns_too_little_is_refused() -> None:
    body = trace_block([f32(B), f32(B), f32(B)], lambda b, p, q, x: p)
    with pytest.raises(IRError, match=r"returns 1 values for 2 carries"):
        emit(ops.Scan(2, 1), (f32(B), f32(B), f32(B, S)), body)


def test_a_scan_needs_a_body() -> None:
    with pytest.raises(IRError, match=r"'scan' needs a body"):
        emit(ops.Scan(1, 1), (f32(B), f32(B, S)))


def test_opaque_sizes_may_be_reshaped_and_sliced() -> None:
    chunks = ceildiv(S, 4)
    (y,) = emit(ops.Reshape((B, 4 * chunks)), (f32(B, chunks, 4),))
    (z,) = emit(ops.Slice(1, 0, S), (y.type,))
    assert z.type == TensorType("f32", (B, S))
