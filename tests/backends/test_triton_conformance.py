"""Every mixer, position encoding and op that is registered, on triton in the interpreter."""

from __future__ import annotations

import pytest
import tests.backends.triton_kernels  # noqa: F401  # sets the interpreter up, or skips
from tests.backends.mixer_parity import check_mixer_on, examples

from seqmix import registry
from seqmix.testing import check_op, check_position

QUICK = ("base_conv",)
"""Whose first example runs every time; the interpreter takes seconds for each."""

OPS = registry.op_table().names()
SLOW = {
    "gated_conv.state_space", "linear_attention", "linear_scan", "long_conv",
    "rope.per_query_attention", "xlstm.mlstm", "xlstm.slstm",
}  # fmt: skip
"""Ops whose examples take the interpreter seconds; their kernels have quick tests of their own."""


@pytest.mark.parametrize("name", QUICK)
def test_a_mixer(name: str) -> None:
    check_mixer_on("triton", name, examples(name)[0], "f32")


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize("name", registry.names("mixers"))
def test_every_example_of_a_mixer(name: str, dtype: str) -> None:
    for options in examples(name):
        check_mixer_on("triton", name, options, dtype)


@pytest.mark.full
@pytest.mark.parametrize("name", registry.names("positions"))
def test_every_position_encoding(name: str) -> None:
    check_position(name, backends=["triton"]).raise_for_failures()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.full) if n in SLOW else n for n in OPS]
)
def test_every_op(name: str) -> None:
    report = check_op(name, backends=["triton"])
    report.raise_for_failures()
    assert any(row.where.startswith("triton") for row in report.rows)


@pytest.mark.full
@pytest.mark.parametrize("name", OPS)
def test_every_op_in_every_dtype(name: str) -> None:
    check_op(name, "full", ["triton"]).raise_for_failures()
