"""The sLSTM cell in torch: its definition, and the laws of splitting and padding."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from tests.plugins.slstm_cases import operands, plain_slstm, worst
from torch import Tensor

from seqmix.errors import ConfigError
from seqmix.testing import check_op
from seqmix_ir.builder import infer_types
from seqmix_ir.errors import IRError
from seqmix_ir.types import TensorType
from seqmix_xlstm.slstm import slstm
from seqmix_xlstm.slstm_op import Slstm

FORGET = ("sigmoid", "exp")


def define(given: list[Tensor], valid: Tensor | None = None, **options) -> tuple[np.ndarray, ...]:
    """The numpy definition, in float64."""

    class Judge:
        judge = True

        def dtype(self, dtype: str) -> np.dtype:
            return np.dtype(np.float64)

    arrays = [x.double().numpy() for x in given]
    return Slstm(**options).evaluate(Judge(), *arrays, None if valid is None else valid.numpy())


@pytest.mark.parametrize("forget", FORGET)
@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 2, 3, 5), (3, 65, 2, 7)])
def test_it_is_its_definition(sizes, past: bool, forget: str) -> None:
    B, S, H, D = sizes
    given = operands(B, S, H, D, past=past)
    valid = torch.rand(B, S) < 0.7
    own, plain = (partial(cell, forget=forget) for cell in (slstm, plain_slstm))
    for mask in (None, valid):
        wanted = define(given, mask, forget=forget)
        for x, y, z in zip(own(*given, mask), wanted, plain(*given, mask), strict=True):
            assert np.abs(x.numpy() - y).max() < 1e-9
            assert (x - z).abs().max() < 1e-9


def test_the_op_passes_the_kit() -> None:
    report = check_op(Slstm, backends=["reference"])
    assert report.ok, report.failures


@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize("forget", FORGET)
def test_splitting_at_every_point_changes_nothing(forget: str, past: bool) -> None:
    gates, recurrent, *states = operands(2, 9, 2, 5, torch.float32, past)
    y, *last = slstm(gates, recurrent, *states, forget=forget)
    for at in range(1, 9):
        first, *middle = slstm(gates[:, :at], recurrent, *states, forget=forget)
        second, *end = slstm(gates[:, at:], recurrent, *middle, forget=forget)
        torch.testing.assert_close(torch.cat([first, second], 1), y, rtol=0, atol=1e-6)
        for x, z in zip(end, last, strict=True):
            torch.testing.assert_close(x, z, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("past", [True, False])
def test_padding_may_stand_anywhere(past: bool) -> None:
    gates, recurrent, *states = operands(3, 8, 2, 5, torch.float32, past)
    valid = torch.tensor([[0, 1, 1, 0, 1, 0, 0, 1], [1] * 6 + [0] * 2, [0] * 8]).bool()
    gates[~valid] = torch.inf
    y, *last = slstm(gates, recurrent, *states, valid)
    assert (y[~valid] == 0).all()
    for row in range(2):
        own = [s[row : row + 1] for s in states]
        wanted, *after = slstm(gates[row : row + 1, valid[row]], recurrent, *own)
        torch.testing.assert_close(y[row, valid[row]], wanted[0], rtol=0, atol=1e-6)
        for x, z in zip(last, after, strict=True):
            torch.testing.assert_close(x[row], z[0], rtol=1e-5, atol=1e-6)
    for before, after in zip(states, last, strict=True):
        assert torch.equal(before[2], after[2])


@pytest.mark.parametrize("at", [0, 3, 7])
def test_padding_keeps_the_states_bit_by_bit(at: int) -> None:
    gates, recurrent, *states = operands(2, 8, 2, 5, torch.float32)
    valid = torch.zeros(2, 8, dtype=torch.bool)
    valid[:, at] = True
    _, *alone = slstm(gates[:, at : at + 1], recurrent, *states)
    _, *padded = slstm(gates, recurrent, *states, valid)
    assert all(map(torch.equal, padded, alone))


@pytest.mark.parametrize(("dtype", "rough"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_narrow_gates_are_computed_wide(dtype: torch.dtype, rough: float) -> None:
    gates, recurrent, *states = operands(2, 33, 2, 5, dtype)
    wide = [s.float() for s in states]
    exact = slstm(gates.double(), recurrent.double(), *(s.double() for s in states))
    y, *last = slstm(gates, recurrent, *wide)
    assert y.dtype == dtype
    assert worst(y, exact[0]) < rough
    for x, z in zip(last, exact[1:], strict=True):
        assert x.dtype == torch.float32
        assert worst(x, z) < 1e-5
    for x, z in zip(slstm(gates, recurrent, *states)[1:], exact[1:], strict=True):
        assert x.dtype == dtype
        assert worst(x, z) < rough
    assert slstm(gates.float(), recurrent, *wide)[0].dtype == torch.float32


@pytest.mark.parametrize("forget", FORGET)
@pytest.mark.parametrize("size", [30.0, 110.0, 1000.0])
def test_extreme_gates_stay_finite(size: float, forget: str) -> None:
    gates, recurrent, *states = operands(2, 20, 2, 5, torch.float32, past=False)
    gates = size * gates.sign()
    given = [x.requires_grad_() for x in (gates, recurrent, *states)]
    out = slstm(*given, forget=forget)
    wanted = define([x.detach() for x in given], forget=forget)
    assert worst(out[0].detach(), torch.from_numpy(wanted[0])) < 1e-4
    out[0].square().sum().backward()
    assert all(x.isfinite().all() for x in (*out, *(x.grad for x in given[:2])))


def test_a_fresh_row_beside_a_continuing_one_is_not_nan() -> None:
    gates, recurrent, *states = operands(2, 4, 2, 5, torch.float32)
    states = [s.index_fill(0, torch.tensor(0), 0.0) for s in states]
    gates[0, 0, :, 0] = -110.0
    out = slstm(gates, recurrent, *states)
    alone = slstm(gates[:1], recurrent, *(s[:1] for s in states))
    assert all(x.isfinite().all() for x in out)
    for x, z in zip(out, alone, strict=True):
        torch.testing.assert_close(x[:1], z, rtol=1e-6, atol=1e-6)


def test_operands_are_left_alone_and_not_shared() -> None:
    given = operands(1, 3, 1, 4, torch.float32)
    before = [x.clone() for x in given]
    out = slstm(*given)
    assert all(map(torch.equal, given, before))
    memory = [x.untyped_storage().data_ptr() for x in (*given, *out)]
    assert len(set(memory)) == len(memory)


def test_wrong_options_are_refused() -> None:
    given = operands(1, 2, 1, 3)
    with pytest.raises(ConfigError, match="forget is 'tanh', expected one of"):
        slstm(*given, forget="tanh")
    for clip in (-1.0, math.nan):
        with pytest.raises(ConfigError, match=r"clip is .*, expected a limit above 0"):
            slstm(*given, clip=clip)


def types(**changes: TensorType) -> tuple[TensorType | None, ...]:
    found = {
        "gates": TensorType("f32", (2, 5, 3, 4, 6)),
        "recurrent": TensorType("f32", (3, 6, 4, 6)),
        **{name: TensorType("f32", (2, 3, 6)) for name in "hcnm"},
        "valid": None,
    }
    return tuple({**found, **changes}.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gates": TensorType("f32", (2, 5, 3, 6))}, r"expected \[B, S, H, 4, D\]"),
        ({"gates": TensorType("f32", (2, 5, 3, 3, 6))}, "is 3, expected 4"),
        ({"gates": TensorType("f32", (2, 0, 3, 4, 6))}, "there are no steps"),
        ({"gates": TensorType("i64", (2, 5, 3, 4, 6))}, "expected dtype f64, f32, f16, bf16"),
        ({"recurrent": TensorType("f32", (3, 6, 4, 5))}, "axis 3 of 'recurrent' .* expected 6"),
        ({"recurrent": TensorType("f64", (3, 6, 4, 6))}, "expected dtype f32, f16, bf16"),
        ({"n": TensorType("f32", (2, 3, 5))}, "axis 2 of 'n'"),
        ({"m": TensorType("bf16", (2, 3, 6))}, "dtypes differ: 'h' is .*, 'm' is"),
        ({"valid": TensorType("i64", (2, 5))}, "expected dtype bool"),
        ({"valid": TensorType("bool", (2, 6))}, "axis 1 of 'valid'"),
    ],
)
def test_operands_that_do_not_fit_are_named(changes, message: str) -> None:
    with pytest.raises(IRError, match=message):
        infer_types(Slstm(), types(**changes))


def test_wrong_attributes_are_named() -> None:
    with pytest.raises(IRError, match="forget is 'relu', expected 'sigmoid' or 'exp'"):
        infer_types(Slstm("relu"), types())
    with pytest.raises(IRError, match="clip is -1"):
        infer_types(Slstm(clip=-1.0), types())
    assert infer_types(Slstm(), types())[0] == TensorType("f32", (2, 5, 3, 6))
