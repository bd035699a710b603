"""Attention, rotary, causal convolution and scan against torch and plain loops."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.ir.op_samples import Sample, f32, i64, lstm_like

from seqmix_ir import ops
from seqmix_ir.builder import trace_block
from seqmix_ir.errors import IRError
from seqmix_ir.interpret import Interpreter

RNG = np.random.default_rng(11)


def normal(*shape: Any) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def qkv(B: Any = 2, H: Any = 6, G: Any = 2, S: Any = 5, P: Any = 3, K: Any = 4, V: Any = 3) -> Any:
    return normal(B, H, S, K), normal(B, G, P + S, K), normal(B, G, P + S, V)


def counted(B: Any, length: Any, start: Any = 0) -> Any:
    return np.broadcast_to(np.arange(length) + start, (B, length)).copy()


def plain_attention(
    q: Any,
    k: Any,
    v: Any,
    qp: Any,
    kp: Any,
    bias: Any = None,
    sinks: Any = None,
    scale: Any = 0.0,
    causal: Any = True,
    window: Any = 0,
) -> Any:
    """One query at a time, in float64."""
    B, H, S, K = q.shape
    y = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, h, s in np.ndindex(B, H, S):
        g = h // (H // k.shape[1])
        keys = [
            t
            for t in range(k.shape[2])
            if qp[b, s] >= 0
            and kp[b, t] >= 0
            and (not causal or kp[b, t] <= qp[b, s])
            and (not window or qp[b, s] - kp[b, t] < window)
        ]
        logits = [float(q[b, h, s].astype(float) @ k[b, g, t]) * (scale or K**-0.5) for t in keys]
        if bias is not None:
            logits = [
                x + np.broadcast_to(bias, (B, H, S, k.shape[2]))[b, h, s, t]
                for x, t in zip(logits, keys, strict=True)
            ]
        total = sum(np.exp(logits)) + (0 if sinks is None else np.exp(sinks[h]))
        for x, t in zip(logits, keys, strict=True):
            y[b, h, s] += np.exp(x) / total * v[b, g, t]
    return y


@pytest.mark.parametrize("P", [0, 3])
def test_causal_attention_is_torch_attention(apply: Any, P: Any) -> None:
    q, k, v = qkv(P=P)
    found = apply(ops.Attention(), q, k, v, counted(2, 5, P), counted(2, 5 + P), None, None)[0]
    mask = torch.ones(5, 5 + P).tril(P).bool()
    tq, tk, tv = (torch.from_numpy(a) for a in (q, k, v))
    expected = F.scaled_dot_product_attention(tq, tk, tv, attn_mask=mask, enable_gqa=True)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [0, 1, 3])
@pytest.mark.parametrize("scale", [0.0, 0.3])
@pytest.mark.parametrize("bias", [None, (2, 6, 5, 8), (6, 1, 1), (8,)])
@pytest.mark.parametrize("sinks", [False, True])
def test_attention_is_the_plain_loop(
    apply: Any, causal: Any, window: Any, scale: Any, bias: Any, sinks: Any
) -> None:
    q, k, v = qkv()
    qp, kp = counted(2, 5, 3), counted(2, 8)
    qp[0, 1] = kp[0, 4] = kp[1, 0] = -1
    extra = (None if bias is None else normal(*bias), normal(6) if sinks else None)
    found = apply(ops.Attention(scale, causal, window), q, k, v, qp, kp, *extra)[0]
    expected = plain_attention(q, k, v, qp, kp, *extra, scale, causal, window)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("style", ["", "direct"])
@pytest.mark.parametrize("sinks", [None, f32(2)])
def test_a_query_that_sees_nothing_gives_zero(style: Any, sinks: Any) -> None:
    q, kv = f32(1, 2, 3, 4), f32(1, 2, 2, 4)
    sample = Sample(ops.Attention(), (q, kv, kv, i64(1, 3), i64(1, 2), None, sinks))
    inputs = sample.inputs({"B": 1, "S": 1, "P": 0})
    inputs |= {"x3": np.array([[-1, 0, 5]]), "x4": np.array([[1, -1]])}
    y = Interpreter(sample.module(style), {}).run("main", inputs)["y0"]
    assert not y[:, :, :2].any()
    assert y[:, :, 2].all()


@pytest.mark.parametrize("style", ["", "direct"])
def test_a_bias_of_minus_infinity_hides(style: Any) -> None:
    q = f32(1, 1, 2, 4)
    sample = Sample(ops.Attention(), (q, q, q, i64(1, 2), i64(1, 2), f32(2, 2), None))
    inputs = sample.inputs({"B": 1, "S": 1, "P": 0})
    bias = np.array([[-np.inf, 0], [-np.inf, 0]], np.float32)
    inputs |= {"x3": np.array([[0, 1]]), "x4": np.array([[0, 1]]), "x5": bias}
    y = Interpreter(sample.module(style), {}).run("main", inputs)["y0"]
    assert not y[0, 0, 0].any()
    np.testing.assert_allclose(y[0, 0, 1], inputs["x2"][0, 0, 1], rtol=1e-6)


def test_attention_of_bf16_is_computed_in_float32(apply: Any) -> None:
    q, k, v = (a.astype(ml_dtypes.bfloat16) for a in qkv())
    positions = counted(2, 5, 3), counted(2, 8)
    found = apply(ops.Attention(), q, k, v, *positions, None, None)[0]
    wide = apply(ops.Attention(), *(a.astype("f") for a in (q, k, v)), *positions, None, None)[0]
    np.testing.assert_array_equal(found, wide.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("half", [1, 2, 3])
def test_rotary_turns_pairs(apply: Any, interleaved: Any, half: Any) -> None:
    x, angle = normal(2, 3, 5, 6), normal(2, 5, half)
    found = apply(ops.Rotary(interleaved), x, np.cos(angle), np.sin(angle))[0]
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + half) for i in range(half)]
    expected = x.copy()
    for i, (a, b) in enumerate(pairs):
        z = (x[..., a] + 1j * x[..., b]) * np.exp(1j * angle[:, None, :, i])
        expected[..., a], expected[..., b] = z.real, z.imag
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("S", [1, 2, 9])
@pytest.mark.parametrize("activation", ["", "silu"])
def test_causal_conv1d_is_torch_conv1d(apply: Any, taps: Any, S: Any, activation: Any) -> None:
    x, w, bias, tail = normal(2, 3, S), normal(3, taps), normal(3), normal(2, 3, taps - 1)
    y, next_tail = apply(ops.CausalConv1d(activation), x, w, bias, tail)
    seq = torch.from_numpy(np.concatenate((tail, x), 2))
    expected = F.conv1d(seq, torch.from_numpy(w)[:, None], torch.from_numpy(bias), groups=3)
    expected = F.silu(expected) if activation else expected
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(next_tail, seq.numpy()[:, :, S:])


def test_causal_conv1d_may_be_split(apply: Any) -> None:
    x, w, tail = normal(1, 3, 7), normal(3, 4), np.zeros((1, 3, 3), np.float32)
    whole = apply(ops.CausalConv1d(), x, w, None, tail)[0]
    first, tail = apply(ops.CausalConv1d(), x[:, :, :2], w, None, tail)
    second, _ = apply(ops.CausalConv1d(), x[:, :, 2:], w, None, tail)
    np.testing.assert_array_equal(np.concatenate((first, second), 2), whole)


def run_scan(defn: Any, types: Any, build: Any, *arrays: Any, judge: Any = False) -> Any:
    sample = Sample(defn, tuple(f32(*a.shape) for a in arrays), body=trace_block(types, build))
    inputs = sample.inputs({"B": 1, "S": 1, "P": 0}) | {f"x{i}": a for i, a in enumerate(arrays)}
    return tuple(Interpreter(sample.module(), {}, judge).run("main", inputs).values())


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("S", [1, 4])
def test_scan_is_the_plain_loop(reverse: Any, S: Any) -> None:
    h, x, w = normal(2, 3), normal(2, S, 3), normal(3)
    types = [f32(2, 3), f32(2, 3), f32(3)]
    last, y = run_scan(ops.Scan(1, 1, 1, reverse), types, lstm_like, h, x, w)
    expected = np.zeros_like(x)
    for t in reversed(range(S)) if reverse else range(S):
        h = np.tanh(h + x[:, t]) * w
        expected[:, t] = -h
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    np.testing.assert_allclose(last, h, rtol=1e-6)


def test_scan_with_several_carries_sequences_and_outputs() -> None:
    def swap(b: Any, p: Any, q: Any, x: Any, y: Any) -> Any:
        return b(ops.Add(), q, x), b(ops.Add(), p, y), b(ops.Mul(), p, x), b(ops.Mul(), q, y)

    p, q, x, y = normal(2), normal(2), normal(5, 2), normal(5, 2)
    found = run_scan(ops.Scan(2, 2, 0), [f32(2)] * 4, swap, p, q, x, y)
    first, second = np.zeros_like(x), np.zeros_like(x)
    for t in range(5):
        first[t], second[t] = p * x[t], q * y[t]
        p, q = q + x[t], p + y[t]
    for array, expected in zip(found, (p, q, first, second), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-6)


def test_scan_without_carries_maps() -> None:
    (found,) = run_scan(ops.Scan(0, 1, 0), [f32(2)], lambda b, x: b(ops.Neg(), x), normal(3, 2))
    assert found.shape == (3, 2)


def test_scans_nest() -> None:
    """The inner one sums a row, the outer one sums the rows."""

    def inner(b: Any, total: Any, x: Any) -> Any:
        return (b(ops.Add(), total, x),)

    def outer(b: Any, total: Any, row: Any) -> Any:
        body = trace_block([f32(), f32()], inner)
        return b.emit(ops.Scan(1, 1, 0), total, row, body=body)

    x = normal(3, 4)
    (total,) = run_scan(ops.Scan(1, 1, 0), [f32(), f32(4)], outer, np.zeros((), "f"), x)
    np.testing.assert_allclose(total, x.sum(), rtol=1e-5)


def test_a_scan_of_no_steps_is_an_error() -> None:
    h, x, w = normal(2, 3), normal(2, 0, 3), normal(3)
    with pytest.raises(IRError, match=r"scan has no steps: axis 1 of its sequences is 0"):
        run_scan(ops.Scan(1, 1), [f32(2, 3), f32(2, 3), f32(3)], lstm_like, h, x, w)
