"""Every mixer, position encoding and op that is registered, on the tvm backend, at odd sizes."""

from __future__ import annotations

import pytest
import tests.backends.needs_tvm  # noqa: F401  # skips
from tests.backends.mixer_parity import check_mixer_on, examples

from seqmix import registry
from seqmix.testing import check_op, check_position

QUICK = ("base_conv", "linear_attention", "rwkv4_time_mix")
"""Whose first example is compiled every time; all examples in all dtypes take minutes."""


@pytest.mark.parametrize("name", QUICK)
def test_a_mixer(name: str) -> None:
    check_mixer_on("tvm", name, examples(name)[0], "f32")


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize("name", registry.names("mixers"))
def test_every_example_of_a_mixer(name: str, dtype: str) -> None:
    for options in examples(name):
        check_mixer_on("tvm", name, options, dtype)


@pytest.mark.full
@pytest.mark.parametrize("name", registry.names("positions"))
def test_every_position_encoding(name: str) -> None:
    report = check_position(name, backends=["tvm"])
    report.raise_for_failures()
    assert any(" tvm f32" in row.where for row in report.rows)


@pytest.mark.full
@pytest.mark.parametrize("name", registry.op_table().names())
def test_every_op(name: str) -> None:
    report = check_op(name, "full", ["tvm"])
    report.raise_for_failures()
    assert any(row.where.startswith("tvm") for row in report.rows)
    assert not [note for note in report.notes if "'tvm'" in note]
