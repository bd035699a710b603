"""Rotary tables under torch.export, at every context, and scalings at the ends of their range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seqmix_rope.rope import Rope, RopeConfig
from seqmix_rope.scaling import correction_range, rope_frequencies, yarn_frequencies
from seqmix_rope.yarn import Yarn, YarnConfig


def encodings() -> list[Any]:
    yarn = YarnConfig(factor=4, original_context_length=64, rotary_dim=10, attn_factor=0.9)
    return [
        pytest.param(Rope(RopeConfig(), head_dim=12), id="rope"),
        pytest.param(Yarn(yarn, head_dim=12), id="yarn"),
    ]


class Tables(nn.Module):
    def __init__(self, encoding: Rope) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, positions: Tensor) -> tuple[Tensor, ...]:
        return self.encoding.tables(positions, positions.amax(1) + 1)


@pytest.mark.parametrize("encoding", encodings())
def test_tables_survive_export(encoding: Rope) -> None:
    sizes = {"positions": {0: torch.export.Dim("B", min=1), 1: torch.export.Dim("S", min=1)}}
    module = Tables(encoding.to(torch.bfloat16))
    program = torch.export.export(module, (torch.arange(8).reshape(2, 4),), dynamic_shapes=sizes)
    positions = torch.tensor([[131071, -1, 0], [5, 131070, 77], [1, 2, 3]])
    found = program.module()(positions)
    for left, right in zip(found, module(positions), strict=True):
        assert left.dtype == torch.float32
        assert torch.equal(left, right)


@pytest.mark.parametrize("encoding", encodings())
def test_tables_do_not_depend_on_the_context(encoding: Rope) -> None:
    positions = torch.tensor([[0, 3, 63, 64, 255]])
    short = encoding.tables(positions, torch.tensor([256]))
    long = encoding.tables(positions, torch.tensor([100000]))
    assert all(torch.equal(a, b) for a, b in zip(short, long, strict=True))
    assert encoding.caches_rotated_keys
    assert encoding.logit_scale(torch.tensor([256])) == encoding.logit_scale(torch.tensor([9]))


@pytest.mark.parametrize("encoding", encodings())
def test_an_encoding_has_nothing_that_a_checkpoint_could_spoil(encoding: Rope) -> None:
    assert not encoding.state_dict()
    assert not list(encoding.parameters())
    rebuilt = encoding.to("meta").to_empty(device="cpu")
    positions = torch.tensor([[7]])
    again = rebuilt.tables(positions, positions.amax(1) + 1)
    angle = 7 * encoding.frequencies().inv_freq
    factor = encoding.frequencies().attention_factor
    np.testing.assert_allclose(again[0][0, 0], factor * np.cos(angle), atol=1e-7)


@pytest.mark.parametrize("factor", [1.0, 3.0, 40.0])
@pytest.mark.parametrize("length", [1, 4, 64, 4096, 2**40])
@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_stays_between_plain_and_interpolated(
    factor: float, length: int, truncate: bool
) -> None:
    plain = rope_frequencies(32, 10000.0).inv_freq
    found = yarn_frequencies(32, 10000.0, factor, length, truncate=truncate).inv_freq
    assert (found <= plain * (1 + 1e-15)).all()
    assert (found >= plain / factor * (1 - 1e-15)).all()
    assert (np.diff(found) < 0).all()


@pytest.mark.parametrize("truncate", [True, False])
def test_a_ramp_outside_of_the_pairs_keeps_or_stretches_them_all(truncate: bool) -> None:
    plain = rope_frequencies(8, 10000.0).inv_freq
    long = yarn_frequencies(8, 10000.0, 4, 2**60, truncate=truncate).inv_freq
    short = yarn_frequencies(8, 10000.0, 4, 1, truncate=truncate).inv_freq
    np.testing.assert_array_equal(long, plain)
    np.testing.assert_allclose(short[1:], plain[1:] / 4, rtol=1e-15)
    for length in (1, 2**60):
        low, high = correction_range(8, 10000.0, length, 32, 1, truncate=truncate)
        assert 0 <= low < high <= 7.001


def test_a_factor_of_one_changes_nothing() -> None:
    found = yarn_frequencies(16, 10000.0, 1.0, 64)
    np.testing.assert_allclose(found.inv_freq, rope_frequencies(16, 10000.0).inv_freq, rtol=1e-15)
    assert found.attention_factor == 1.0
