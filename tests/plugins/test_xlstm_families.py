"""Both families as configurations: what is stacked, what is refused, and one export each."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import seqmix
from seqmix.branches import LayerNorm, make_norm
from seqmix.capture.stitch import plan_of
from seqmix.config import ModelConfig, NormConfig, read_config
from seqmix.errors import ConfigError
from seqmix.model import Model
from seqmix.testing import check_model
from seqmix_xlstm.families import slstm_places, xlstm_block_stack_config, xlstm_large_config


def kinds(config: ModelConfig) -> list[str]:
    return [branch.kind for branch in config.branches()]


def test_blocks_of_the_stack() -> None:
    config = xlstm_block_stack_config(50, 24, 3, slstm_at=[1], heads=2, round_up_to=8)
    assert kinds(config) == ["mlstm_up", "slstm", "swiglu", "mlstm_up"]
    assert config.branches()[1].options["block"] == 1
    assert config.branches()[2].options["hidden"] == 32
    assert config.branches()[2].options["activation"] == "gelu"
    assert config.norm == NormConfig(kind="layer", eps=1e-5, bias=False)
    wide = xlstm_block_stack_config(50, 128, 1, slstm_at="all").branches()
    assert (wide[1].options["hidden"], len(wide)) == (192, 2)


def test_the_paper_s_notation() -> None:
    assert slstm_places(16, (), "7:1") == {7, 15}
    assert slstm_places(4, (), "[1:1]") == {1, 3}
    assert slstm_places(3, (), "0:1") == slstm_places(3, "all", None) == {0, 1, 2}
    assert slstm_places(3, (), "1:0") == slstm_places(3, (), None) == frozenset()
    assert slstm_places(6, [5, 0], None) == {0, 5}
    config = xlstm_block_stack_config(50, 24, 4, ratio="3:1", heads=2, round_up_to=8)
    assert kinds(config) == ["mlstm_up"] * 3 + ["slstm", "swiglu"]


def test_blocks_of_the_large_model() -> None:
    config = xlstm_large_config(50, 64, 2)
    assert kinds(config) == ["mlstm", "swiglu"] * 2
    assert (config.logit_soft_cap, config.norm) == (30, NormConfig(kind="rms", eps=1e-6))
    assert config.branches()[1].options["hidden"] == 192


def test_xlstm_7b_has_its_published_size() -> None:
    config = xlstm_large_config(50304, 4096, 32)
    assert config.branches()[1].options["hidden"] == 10944
    with torch.device("meta"):
        assert Model(config).parameter_count() == 6_865_424_896


def test_configurations_survive_json(tmp_path: Path) -> None:
    for config in (
        xlstm_large_config(50, 64, 2),
        xlstm_block_stack_config(50, 24, 4, ratio="1:1", heads=2),
    ):
        (path := tmp_path / "config.json").write_text(config.to_json())
        assert read_config(path) == config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"slstm_at": [1], "ratio": "1:1"}, "both say which blocks are sLSTM"),
        ({"slstm_at": [4]}, "slstm_at names [4], but the blocks are 0 to 3"),
        ({"slstm_at": [-1]}, "slstm_at names [-1], but the blocks are 0 to 3"),
        ({"slstm_at": "some"}, "expected block numbers, or 'all'"),
        ({"ratio": "7"}, "expected 'a:b', such as '7:1'"),
        ({"ratio": "0:0"}, "has no block at all"),
        ({"ratio": "7:1"}, "needs a multiple of 8 blocks, found 4"),
        ({"heads": 0}, "heads is 0; it must be at least 1"),
        ({"heads": 5}, "inner width is 64, which is no multiple of heads = 5"),
        ({"heads": 5, "slstm_at": "all"}, "width is 24, which is no multiple of heads = 5"),
        ({"clip": -1, "slstm_at": "all"}, "clip: "),
        ({"dtype": "f8"}, "model 'xlstm': dtype: "),
        ({"blocks": 0}, "blocks is 0; it must be at least 1"),
    ],
)
def test_stacks_that_do_not_fit(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        xlstm_block_stack_config(**{"vocab_size": 50, "width": 24, "blocks": 4, **arguments})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "qk_dim_factor * width is 12, which is no multiple of"),
        ({"heads": 3, "width": 0}, "width is 0; it must be at least 1"),
        ({"heads": 3, "logit_soft_cap": -1}, "logit_soft_cap: "),
        ({"heads": 3, "ffn_factor": math.nan}, "ffn_factor is nan; it must be a number above 0"),
        ({"heads": 3, "gate_soft_cap": math.inf}, "finite number, found inf"),
        ({"heads": 3, "vocab_size": 0}, "vocab_size: "),
    ],
)
def test_large_models_that_do_not_fit(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        xlstm_large_config(**{"vocab_size": 50, "width": 24, "blocks": 2, **arguments})
    assert message in str(caught.value)


def stirred(config: ModelConfig) -> Model:
    """Weights away from the zeros and ones they start with, so that each of them matters."""
    torch.manual_seed(0)
    model = Model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize("family", ["stack", "large"])
def test_one_export_runs_at_every_length(family: str) -> None:
    """Prefill, prefill from a state, and a step, at lengths that were not traced."""
    pytest.importorskip("onnxruntime")
    config = (
        xlstm_block_stack_config(50, 24, 3, slstm_at=[1], heads=3, round_up_to=12)
        if family == "stack"
        else xlstm_large_config(50, 24, 2, heads=3)
    )
    model = stirred(config)
    executable = seqmix.compile(model, backend="onnxruntime", cache=False)
    check_model(model, {"onnxruntime": executable}, (1, 7, 50)).raise_for_failures()


def test_capture_traces_each_kind_of_block_once() -> None:
    """Where a block stands decides its fresh weights and nothing else."""
    config = xlstm_block_stack_config(50, 24, 4, ratio="1:1", heads=3, round_up_to=12)
    assert plan_of(Model(config)).templates == [0, 1, 2]
    assert plan_of(Model(xlstm_large_config(50, 24, 3, heads=3))).templates == [0, 1]


def logits_of(config: ModelConfig, head: Tensor) -> Tensor:
    model = Model(config)
    with torch.no_grad():
        model.head.weight.copy_(head)
    logits, _ = model(torch.tensor([[1, 2, 3]]), torch.arange(3).unsqueeze(0))
    return logits


def test_logits_are_capped_softly() -> None:
    torch.manual_seed(0)
    head = 100 * torch.randn(9, 24)
    configs = [xlstm_large_config(9, 24, 1, heads=3, logit_soft_cap=cap) for cap in (0, 30)]
    torch.manual_seed(1)
    free = logits_of(configs[0], head)
    torch.manual_seed(1)
    capped = logits_of(configs[1], head)
    assert free.abs().max() > 30
    torch.testing.assert_close(capped, 30 * torch.tanh(free / 30))


def test_a_layer_norm_may_have_no_bias() -> None:
    norm = make_norm(NormConfig(kind="layer", bias=False), 6)
    assert isinstance(norm, LayerNorm)
    assert norm.bias is None
    x = torch.randn(2, 6)
    wanted = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(norm(x), wanted)


def test_configurations_from_before_these_options_load() -> None:
    """What an older configuration does not say is as it was."""
    old = {
        "vocab_size": 9,
        "width": 8,
        "context_length": 4,
        "blocks": [{"steps": [{"kind": "swiglu", "hidden": 5}]}],
        "norm": {"kind": "layer", "eps": 1e-5},
    }
    config = ModelConfig.model_validate(old)
    assert (config.logit_soft_cap, config.init_std, config.norm.bias) == (0, 0.02, True)
    model = Model(config)
    assert "steps.0.branches.0.norm.bias" in model.state_dict()
    logits, _ = model(torch.tensor([[1, 2]]), torch.arange(2).unsqueeze(0))
    assert logits.shape == (1, 2, 9)
