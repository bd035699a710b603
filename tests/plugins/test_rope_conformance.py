"""Attention with every rotary encoding keeps the laws, and means the same on every backend."""

from __future__ import annotations

import pytest
import torch
from tests.mixers import QUICK_BACKENDS
from torch import Tensor

from seqmix import registry
from seqmix.testing import check_op, check_position
from seqmix_rope.per_query_op import PerQueryAttention
from seqmix_rope.rope import Rope

ENCODINGS = (
    "rope",
    "linear",
    "ntk",
    "ntk-by-parts",
    "yarn",
    "llama3",
    "longrope",
    "proportional",
    "dynamic-linear",
    "dynamic-ntk",
    "dynamic-ntk-by-parts",
    "dynamic-yarn",
)
QUICK = ("dynamic-yarn",)


def test_the_list_is_that_of_the_plugin() -> None:
    found = {
        name
        for name in registry.names("positions")
        if registry.get("positions", name).__module__.startswith("seqmix_rope.")
    }
    assert set(ENCODINGS) <= found


@pytest.mark.parametrize("name", QUICK)
def test_laws_and_backends(name: str) -> None:
    example = registry.get("positions", name).examples()[0]
    check_position(name, example, backends=QUICK_BACKENDS).raise_for_failures()


@pytest.mark.full
@pytest.mark.parametrize("name", ENCODINGS)
def test_laws_and_backends_of_all_examples(name: str) -> None:
    check_position(name).raise_for_failures()


@pytest.mark.full
def test_one_scale_per_window_is_exempt_from_splitting_alone() -> None:
    example = registry.get("positions", "dynamic-ntk").examples()[-1]
    assert example["mode"] == "per_window"
    report = check_position("dynamic-ntk", example, backends=["torch"])
    report.raise_for_failures()
    checks = {row.check for row in report.rows}
    assert {"causality", "padding", "gradients"} <= checks
    assert not any(check.startswith("splitting") for check in checks)


class Forgetful(Rope):
    """Turns by the place in the call."""

    def tables(self, positions: Tensor, context_length: Tensor) -> tuple[Tensor, ...]:
        places = torch.arange(positions.shape[1]).expand_as(positions)
        return super().tables(places, context_length)


def test_the_kit_notices_what_breaks_the_laws() -> None:
    report = check_position(Forgetful, {"theta": 100.0}, backends=["torch"])
    assert {"splitting", "padding"} <= {row.check for row in report.failures}


def test_the_op() -> None:
    assert PerQueryAttention.name in registry.op_table().names()
    check_op(PerQueryAttention.name).raise_for_failures()
