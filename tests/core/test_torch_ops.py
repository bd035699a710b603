"""The shared ops against plain references: values, gradients, fake kernels, dispatch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from seqmix.ops import attention, attention_chunks, causal_conv1d, clip_gradient, rotary

GROUPS = [(1, 1), (4, 4), (6, 2)]


def reference_attention(
    q, k, v, qp, kp, bias=None, sinks=None, *, scale=0.0, causal=True, window=0
):
    """Row by row, in float64 where the inputs are."""
    B, H, S, K = q.shape
    out = q.new_zeros(B, H, S, v.shape[-1])
    share = H // k.shape[1]
    for b in range(B):
        for h in range(H):
            for s in range(S):
                p = int(qp[b, s])
                seen = [
                    t
                    for t, t_at in enumerate(kp[b].tolist())
                    if t_at >= 0
                    and p >= 0
                    and (not causal or t_at <= p)
                    and (window == 0 or p - t_at < window)
                ]
                if not seen:
                    continue
                logits = k[b, h // share, seen] @ q[b, h, s] * (scale or 1 / math.sqrt(K))
                if bias is not None:
                    logits = logits + bias.expand(B, H, S, -1)[b, h, s, seen]
                if sinks is not None:
                    logits = torch.cat([logits, sinks[h : h + 1]])
                weights = torch.softmax(logits, 0)[: len(seen)]
                out[b, h, s] = weights @ v[b, h // share, seen]
    return out


def case(B=2, H=4, G=2, S=5, T=7, K=6, V=6, dtype=torch.float32, seed=0) -> Any:
    """Random tensors; row 0 has padding in the middle, and one query that sees nothing."""
    torch.manual_seed(seed)
    q, k = torch.randn(B, H, S, K, dtype=dtype), torch.randn(B, G, T, K, dtype=dtype)
    v = torch.randn(B, G, T, V, dtype=dtype)
    kp = torch.arange(T).repeat(B, 1)
    qp = torch.arange(T - S, T).repeat(B, 1)
    kp[0, T // 2] = -1
    qp[0, S // 2] = -1
    return q, k, v, qp, kp


@pytest.mark.parametrize(("H", "G"), GROUPS)
@pytest.mark.parametrize(("S", "T"), [(1, 1), (1, 9), (5, 7), (7, 7), (3, 65)])
@pytest.mark.parametrize("V", [6, 3])
def test_attention_is_the_reference(H, G, S, T, V):
    tensors = case(H=H, G=G, S=S, T=T, V=V, dtype=torch.float64)
    expected = reference_attention(*tensors)
    torch.testing.assert_close(attention(*tensors), expected)
    with torch.no_grad():
        torch.testing.assert_close(attention(*tensors), expected)


@pytest.mark.parametrize("V", [6, 3])
@pytest.mark.parametrize("bias_shape", [(1, 1), (2, 4), (1, 4)])
@pytest.mark.parametrize("options", [{}, {"window": 3}, {"causal": False}, {"scale": 0.3}])
def test_attention_with_bias_and_sinks(V, bias_shape, options):
    tensors = case(V=V, dtype=torch.float64)
    bias = torch.randn(*bias_shape, 5, 7, dtype=torch.float64)
    sinks = torch.randn(4, dtype=torch.float64)
    for extra in ((bias, None), (None, sinks), (bias, sinks)):
        expected = reference_attention(*tensors, *extra, **options)
        torch.testing.assert_close(attention(*tensors, *extra, **options), expected)


def test_one_query_shares_the_keys_of_its_group():
    # Enough keys for the path that folds the heads of a group into rows.
    tensors = case(B=1, H=4, G=2, S=1, T=2100, K=64, V=64)
    bias = torch.randn(1, 4, 1, 2100)
    q, k, v = tensors[:3]
    for extra in ((), (bias,), (bias[:, :1],)):
        mask = tensors[4][:, None, None] >= 0
        added = torch.where(mask & (tensors[4] <= tensors[3])[:, None, None], 0.0, float("-inf"))
        added = added if not extra else added + extra[0]
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=added, enable_gqa=True)
        torch.testing.assert_close(attention(*tensors, *extra), expected)


def test_whole_sequences_need_no_mask():
    q, k, v, _, _ = case(S=65, T=65, V=6)
    positions = torch.arange(3, 68).expand(2, 65)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(attention(q, k, v, positions, positions), expected)


def test_rows_that_see_nothing_are_zero_and_so_are_their_gradients():
    for V in (6, 3):
        q, k, v, qp, _ = case(V=V)
        q, k, v = (t.requires_grad_() for t in (q, k, v))
        kp = torch.full((2, 7), -1)
        y = attention(q, k, v, qp, kp)
        y.sum().backward()
        assert torch.equal(y, torch.zeros_like(y))
        for t in (q, k, v):
            assert t.grad is not None
            assert torch.equal(t.grad, torch.zeros_like(t))


def test_attention_without_keys():
    q, k, v, qp, kp = case(T=7)
    y = attention(q, k[:, :, :0], v[:, :, :0], qp, kp[:, :0])
    assert torch.equal(y, torch.zeros(2, 4, 5, 6))


@pytest.mark.parametrize("V", [6, 3])
@pytest.mark.parametrize("learned", [True, False])
def test_attention_chunks_change_nothing(monkeypatch, V, learned):
    """The kernel of torch takes over where V is K and the bias needs no gradient."""
    q, k, v, qp, kp = case(V=V)
    bias = torch.randn(1, 4, 5, 7, requires_grad=learned)
    inputs = [t.requires_grad_() for t in (q, k, v)] + [bias] * learned
    want = torch.autograd.grad(attention(q, k, v, qp, kp, bias).pow(2).sum(), inputs)
    monkeypatch.setattr(attention_chunks, "_LOGITS", 2 * 4 * 7 * 2)
    found = torch.autograd.grad(attention(q, k, v, qp, kp, bias).pow(2).sum(), inputs)
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("V", [3, 2])
@pytest.mark.parametrize("options", [{}, {"window": 3}, {"causal": False, "scale": 0.7}])
def test_attention_gradients(V, options):
    q, k, v, qp, kp = case(B=2, S=3, T=5, V=V, K=3, dtype=torch.float64)
    bias = torch.randn(1, 4, 3, 5, dtype=torch.float64)
    sinks = torch.randn(4, dtype=torch.float64)
    inputs = [t.requires_grad_() for t in (q, k, v, bias, sinks)]

    def run(q, k, v, bias, sinks):
        return attention(q, k, v, qp, kp, bias, sinks, **options)

    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradcheck(lambda q, k, v: run(q, k, v, None, None), inputs[:3])


def test_bf16_attention_computes_in_float32():
    q, k, v, qp, kp = case(K=64, V=64)
    half = q, k, v = [t.to(torch.bfloat16) for t in (q, k, v)]
    exact = attention(q.float(), k.float(), v.float(), qp, kp)
    for V in (64, 3):
        y = attention(half[0], half[1], half[2][..., :V], qp, kp)
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y.float(), exact[..., :V], rtol=8e-3, atol=8e-3)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("R", [8, 6, 2])
def test_rotary_is_a_rotation_of_pairs(interleaved, R):
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    angle = torch.randn(2, 5, R // 2, dtype=torch.float64)
    expected = x.clone()
    pairs = x[..., :R].unflatten(-1, (R // 2, 2) if interleaved else (2, R // 2))
    a, b = pairs.unbind(-1 if interleaved else -2)
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle).unsqueeze(1)
    stacked = torch.stack([turned.real, turned.imag], -1 if interleaved else -2)
    expected[..., :R] = stacked.flatten(-2)
    found = rotary(x, angle.cos(), angle.sin(), interleaved=interleaved)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_gradients(interleaved):
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64, requires_grad=True)
    cos, sin = (torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda *t: rotary(*t, interleaved=interleaved), (x, cos, sin))


def test_rotary_in_bf16_turns_in_float32():
    x = torch.randn(1, 2, 3, 8).bfloat16()
    angle = torch.randn(1, 3, 4)
    y = rotary(x, angle.cos(), angle.sin())
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, rotary(x.float(), angle.cos(), angle.sin()).bfloat16())


def reference_conv(x, weight, bias, tail, activation):
    joined = torch.cat([tail, x], -1)
    y = F.conv1d(joined, weight.unsqueeze(1), bias, groups=x.shape[1])
    return F.silu(y) if activation else y, joined[..., x.shape[-1] :]


@pytest.mark.parametrize("activation", ["", "silu"])
@pytest.mark.parametrize("S", [1, 2, 3, 63])
@pytest.mark.parametrize("W", [1, 2, 4])
@pytest.mark.parametrize("with_bias", [False, True])
def test_causal_conv1d(activation, S, W, with_bias):
    x, weight = torch.randn(2, 5, S), torch.randn(5, W)
    tail, bias = torch.randn(2, 5, W - 1), torch.randn(5) if with_bias else None
    y, last = causal_conv1d(x, weight, bias, tail, activation=activation)
    expected, expected_last = reference_conv(x, weight, bias, tail, activation)
    torch.testing.assert_close(y, expected)
    assert torch.equal(last, expected_last)


@pytest.mark.parametrize("activation", ["", "silu"])
@pytest.mark.parametrize("S", [1, 2, 6])
def test_causal_conv1d_gradients(activation, S):
    x, weight, bias, tail = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 3, S), (3, 4), (3,), (2, 3, 3))
    )

    def run(*tensors):
        return causal_conv1d(*tensors, activation=activation)

    assert torch.autograd.gradcheck(run, (x, weight, bias, tail))


def test_causal_conv1d_piece_by_piece_is_bitwise_the_same():
    x, weight, tail = torch.randn(2, 3, 9), torch.randn(3, 4), torch.zeros(2, 3, 3)
    whole, _ = causal_conv1d(x, weight, None, tail)
    first, tail = causal_conv1d(x[..., :2], weight, None, tail)
    second, _ = causal_conv1d(x[..., 2:], weight, None, tail)
    assert torch.equal(torch.cat([first, second], -1), whole)


def test_clip_gradient():
    x = torch.randn(4, requires_grad=True)
    y = clip_gradient(x, 0.5)
    assert torch.equal(y, x)
    (y * torch.tensor([0.1, 2.0, -3.0, -0.2])).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.tensor([0.1, 0.5, -0.5, -0.2]))


def test_no_result_is_a_view_of_an_operand():
    x = torch.randn(2, 3, 4)
    _, last = causal_conv1d(x, torch.randn(3, 2), None, torch.zeros(2, 3, 1))
    assert last.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert clip_gradient(x, 1.0).untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


@pytest.mark.parametrize("name", ["attention", "rotary", "causal_conv1d", "clip_gradient"])
def test_opcheck(name):
    x = torch.randn(2, 4, 5, 6, requires_grad=True)
    cases: dict[str, Any] = {
        "attention": (
            (x, *(torch.randn(2, 2, 7, 6) for _ in range(2)), *case()[3:], None, None),
            {"window": 3},
        ),
        "rotary": ((x, torch.randn(2, 5, 2), torch.randn(2, 5, 2)), {"interleaved": True}),
        "causal_conv1d": (
            (torch.randn(2, 3, 4), torch.randn(3, 4), torch.randn(3), torch.randn(2, 3, 3)),
            {"activation": "silu"},
        ),
        "clip_gradient": ((x,), {"limit": 1.0}),
    }
    args, kwargs = cases[name]
    overload = getattr(torch.ops.seqmix, name).default
    torch.library.opcheck(overload, args, kwargs)
