"""Fresh weights are drawn as the papers say, each by what it is and not by what it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from seqmix.model import Model
from seqmix_xlstm.families import xlstm_block_stack_config, xlstm_large_config
from seqmix_xlstm.initial import (
    linspace_,
    power_law_,
    small_init_,
    small_std,
    wang_init_,
    wang_std,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "xlstm" / "xlstm_block_stack.json"
WIDTH, BLOCKS = 256, 3


def close_std(weight: Tensor, std: float) -> None:
    """Within five standard errors; a sample of n has std / sqrt(2 n)."""
    error = 5 * std / (2 * weight.numel()) ** 0.5
    assert abs(weight.std().item() - std) < error
    assert abs(weight.mean().item()) < 5 * std / weight.numel() ** 0.5


def test_small_and_wang() -> None:
    torch.manual_seed(0)
    assert small_std(40) == pytest.approx(0.1)
    assert wang_std(16, 5) == pytest.approx(0.1)
    weight = torch.empty(200, 300)
    small_init_(weight, 64)
    close_std(weight, (2 / (5 * 64)) ** 0.5)
    wang_init_(weight, 64, 12)
    close_std(weight, 2 / (12 * 8))


def test_forget_gates_of_mlstm_are_evenly_open() -> None:
    wanted = json.loads(GOLDEN.read_text())["reference_inits"]["mlstm_fgate_bias"]
    for heads in (1, 2, 7):
        bias = torch.empty(heads)
        linspace_(bias)
        assert torch.equal(bias, torch.linspace(3, 6, heads))
    linspace_(two := torch.empty(2))
    assert two.tolist() == wanted


def test_forget_gates_of_slstm_follow_a_power_law() -> None:
    wanted = json.loads(GOLDEN.read_text())["reference_inits"]
    heads = torch.tensor(wanted["slstm_bias_internal_at_reset (gate,head,dh)"])
    bias = torch.empty(2, 16)
    power_law_(bias, 1, 2)
    assert (bias - heads).abs().max() < 1e-5
    power_law_(first := torch.empty(16), 0, 2)
    assert first[1].item() == pytest.approx(5 - 12 * (1 / 15) ** 0.3, abs=1e-5)
    assert [first[0].item(), first[-1].item()] == [5, -7]


@pytest.mark.parametrize(("size", "block", "blocks"), [(1, 0, 4), (1, 3, 4), (5, 0, 1), (1, 0, 1)])
def test_one_channel_or_one_block_is_no_division_by_zero(
    size: int, block: int, blocks: int
) -> None:
    power_law_(bias := torch.empty(size), block, blocks)
    assert bias.isfinite().all()
    assert bias[0] == 5
    if size > 1:
        assert bias[1].item() == pytest.approx(5 - 12 * 0.25**0.3, abs=1e-5)


@pytest.fixture(scope="module")
def large() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return Model(xlstm_large_config(300, WIDTH, BLOCKS)).state_dict()


@pytest.fixture(scope="module")
def stack() -> dict[str, Tensor]:
    torch.manual_seed(2)
    return Model(xlstm_block_stack_config(300, WIDTH, BLOCKS, slstm_at=[2])).state_dict()


SMALL, WANG = small_std(WIDTH), wang_std(WIDTH, BLOCKS)


def test_the_large_model(large: dict[str, Tensor]) -> None:
    for block in range(BLOCKS):
        mixer, ffn = (f"steps.{2 * block + i}.branches.0.mixer." for i in range(2))
        # The output gate and the feed-forward gate are projections like any other.
        for name in ("query", "key", "value", "output_gate"):
            close_std(large[f"{mixer}{name}.weight"], SMALL)
        for name in ("gate", "up"):
            close_std(large[f"{ffn}{name}.weight"], SMALL)
        close_std(large[f"{mixer}output.weight"], WANG)
        close_std(large[f"{ffn}down.weight"], WANG)
        for name in ("input_gate", "forget_gate"):
            assert not large[f"{mixer}{name}.weight"].any()
        assert (large[f"{mixer}input_gate.bias"] == -10).all()
        assert torch.equal(large[f"{mixer}forget_gate.bias"], torch.linspace(3, 6, 8))
        assert (large[f"{mixer}norm.weight"] == 1).all()
    for name in ("embed.weight", "head.weight"):
        close_std(large[name], SMALL)


def test_the_block_stack(stack: dict[str, Tensor]) -> None:
    for block in (0, 1):
        mixer = f"steps.{block}.branches.0.mixer."
        for name in ("up", "query", "key", "value"):
            close_std(stack[f"{mixer}{name}.weight"], SMALL)
        close_std(stack[f"{mixer}down.weight"], WANG)
        for name in ("input_gate", "forget_gate"):
            assert not stack[f"{mixer}{name}.weight"].any()
        bias = stack[f"{mixer}input_gate.bias"]
        assert 0 < bias.abs().max() < 0.6
        assert torch.equal(stack[f"{mixer}forget_gate.bias"], torch.linspace(3, 6, 4))
        assert (stack[f"{mixer}skip"] == 1).all()
    mixer, ffn = "steps.2.branches.0.mixer.", "steps.3.branches.0.mixer."
    for name in ("input_gate", "forget_gate", "cell_input", "output_gate"):
        close_std(stack[f"{mixer}{name}.weight"], SMALL)
    assert not stack[f"{mixer}recurrent"].any()
    bias = stack[f"{mixer}bias"]
    power_law_(wanted := torch.empty(4, 64), 2, BLOCKS)
    assert torch.equal(bias[:, 1], wanted)
    assert not bias[:, [0, 2, 3]].any()
    for name in ("gate", "up"):
        close_std(stack[f"{ffn}{name}.weight"], SMALL)
    close_std(stack[f"{ffn}down.weight"], WANG)
