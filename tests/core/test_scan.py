"""seqmix.scan eagerly: values, gradients, aliasing and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seqmix.errors import ConfigError
from seqmix.ops import clip_gradient
from seqmix.scan import scan


def running(carries, slices, constants):
    total = carries[0] + slices[0]
    return (total,), (total,)


@pytest.mark.parametrize("S", [1, 2, 63])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sum(S, axis, reverse):
    x = torch.randn([S if i == axis % 3 else 3 for i in range(3)], dtype=torch.float64)
    first = torch.zeros_like(x.select(axis, 0))
    (last,), (y,) = scan(running, (first,), (x,), axis=axis, reverse=reverse)
    expected = x.flip(axis).cumsum(axis).flip(axis) if reverse else x.cumsum(axis)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(last, x.sum(axis))


def test_an_lstm_is_the_lstm_of_torch():
    lstm = nn.LSTM(5, 3, batch_first=True).double()
    x = torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=True)

    def cell(carries, slices, constants):
        h, c = carries
        gates = F.linear(slices[0], constants[0], constants[2])
        gates = gates + F.linear(h, constants[1], constants[3])
        i, f, g, o = gates.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return (h, c), (h,)

    zero = torch.zeros(2, 3, dtype=torch.float64)
    (h, c), (y,) = scan(cell, (zero, zero), (x,), tuple(lstm.parameters()))
    expected, (last_h, last_c) = lstm(x)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(h, last_h[0])
    torch.testing.assert_close(c, last_c[0])
    wanted = torch.autograd.grad(expected.pow(2).sum(), [x, *lstm.parameters()])
    found = torch.autograd.grad(y.pow(2).sum(), [x, *lstm.parameters()])
    torch.testing.assert_close(found, wanted)


def test_clipped_gradients_flow_through_the_loop():
    def cell(carries, slices, constants):
        return (clip_gradient(carries[0] * 10 + slices[0], 1.0),), (slices[0],)

    x = torch.zeros(1, 4, requires_grad=True)
    (last,), _ = scan(cell, (torch.zeros(1),), (x,))
    (last * 5).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones(1, 4))


def test_a_carry_passed_through_is_a_copy():
    first = torch.ones(2)
    x = torch.randn(2, 3)

    def cell(carries, slices, constants):
        return carries, (slices[0],)

    (last,), (y,) = scan(cell, (first,), (x,))
    assert torch.equal(last, first)
    assert torch.equal(y, x)
    assert last.data_ptr() != first.data_ptr()


def test_one_tensor_for_two_carries_becomes_two():
    def cell(carries, slices, constants):
        new = carries[0] + slices[0]
        return (new, new), ()

    (a, b), out = scan(cell, (torch.zeros(2), torch.zeros(2)), (torch.ones(2, 3),))
    assert out == ()
    assert torch.equal(a, b)
    assert a.data_ptr() != b.data_ptr()


@pytest.mark.parametrize(
    ("new", "text"),
    [
        (lambda c: c.double(), r"carry 0 was float32\[2\] and became float64\[2\]"),
        (lambda c: c.unsqueeze(0), r"carry 0 was float32\[2\] and became float32\[1, 2\]"),
    ],
)
def test_a_carry_that_changes_its_type_is_refused(new, text):
    with pytest.raises(ConfigError, match=text):
        scan(lambda c, s, k: ((new(c[0]),), ()), (torch.zeros(2),), (torch.ones(2, 3),))


def test_wrong_arguments_are_refused():
    x, h = torch.ones(2, 3), torch.zeros(2)
    cases: list[Any] = [
        (((h,), (x[:, :0],)), {}, "length 0 along axis 1"),
        (((h,), (x, x[:, :2])), {}, r"lengths \[3, 2\] along axis 1"),
        (((h,), ()), {}, "1 carries and 0 sequences"),
        (((h,), (x,)), {"axis": 2}, "axis 2 does not exist"),
    ]
    for arguments, options, text in cases:
        with pytest.raises(ConfigError, match=text):
            scan(running, *arguments, **options)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (lambda c, s, k: (c[0], s[0]), r"returned \['Tensor', 'Tensor'\]; expected \(new carries"),
        (lambda c, s, k: c[0], "returned Tensor; expected"),
        (lambda c, s, k: (c, s, k), r"\['tuple', 'tuple', 'tuple'\]; expected"),
        (lambda c, s, k: (c, (1.0,)), "each a tuple of tensors"),
    ],
)
def test_what_is_no_pair_of_tuples_is_refused(cell, text):
    with pytest.raises(ConfigError, match=text):
        scan(cell, (torch.zeros(2),), (torch.ones(2, 3),))


def test_an_output_that_cannot_be_stacked_is_refused():
    x = torch.ones(2, 4, 3)
    with pytest.raises(ConfigError, match=r"output 0 is float32\[\], .* axis 2"):
        scan(lambda c, s, k: (c, (s[0].sum(),)), (torch.zeros(2),), (x,), axis=2)


def test_last_carries_share_no_memory_with_the_arguments():
    h, x, w = torch.zeros(2, 3), torch.randn(2, 4, 3), torch.randn(3, 2)

    def cell(carries, slices, constants):
        return (slices[0], constants[0].T, carries[2].view(2, 3)), ()

    last, _ = scan(cell, (h, h, h), (x,), (w,))
    assert torch.equal(last[0], x[:, -1])
    memory = [t.untyped_storage().data_ptr() for t in (*last, h, x, w)]
    assert len(set(memory)) == 6


def test_a_loop_under_vmap():
    x = torch.randn(3, 2, 4)
    (last,), (y,) = torch.vmap(lambda x: scan(running, (torch.zeros(2),), (x,)))(x)
    torch.testing.assert_close(y, x.cumsum(-1))
    torch.testing.assert_close(last, x.sum(-1))


def test_the_number_of_carries_is_checked():
    with pytest.raises(ConfigError, match="returned 0 carries, expected 1"):
        scan(lambda c, s, k: ((), ()), (torch.zeros(2),), (torch.ones(2, 3),))
