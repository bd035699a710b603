"""A small model of every family on the tvm backend: torch's logits and states, and its text."""

from __future__ import annotations

from typing import Any

import pytest
import tests.backends.needs_tvm  # noqa: F401  # skips
import torch
from tests.core import tiny

import seqmix
from seqmix.config import ModelConfig
from seqmix.families import gpt_config, neox_config
from seqmix.generate import generate_all
from seqmix.model import Model
from seqmix.testing import check_model
from seqmix_xlstm.families import xlstm_block_stack_config, xlstm_large_config

VOCAB, WIDTH = tiny.VOCAB, 24
PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3, 5]]
"""Of different lengths: a batch of them is padded."""
ATTENTION: dict[str, Any] = {"kind": "attention", "heads": 4, "kv_heads": 2, "head_dim": 6}
SWIGLU: dict[str, Any] = {"kind": "swiglu", "hidden": 20}
MLP: dict[str, Any] = {"kind": "mlp", "hidden": 20}
RETENTION: dict[str, Any] = {"kind": "retention", "heads": 3, "chunk": 4}


def stack(*steps: Any, **more: Any) -> ModelConfig:
    """Two repeats of some steps."""
    fields = {
        "vocab_size": VOCAB, "width": WIDTH, "context_length": 64, "head_dim": 6,
        "position": {"kind": "rope", "theta": 300.0}, "blocks": [{"repeat": 2, "steps": steps}],
    }  # fmt: skip
    return ModelConfig.model_validate({**fields, **more})


def families() -> dict[str, ModelConfig]:
    """A configuration of each, by the family's name."""
    window, biased = {**ATTENTION, "window": 5}, {**ATTENTION, "bias": True}
    layer, no_rope = {"kind": "layer"}, {"position": None, "head_dim": None}
    yarn = {"kind": "yarn", "theta": 300.0, "factor": 2.0, "original_context_length": 32}
    heads = {"kind": "attention", "heads": 4, "head_dim": 6}
    rwkv = ({"kind": "rwkv4_time_mix"}, {"kind": "rwkv4_channel_mix", "hidden": 40})
    convolution = {"kind": "long_convolution", "taps": 40}
    return {
        "llama": stack(ATTENTION, SWIGLU),
        "llama-yarn": stack(ATTENTION, SWIGLU, position=yarn),
        "mistral": stack(window, SWIGLU),
        "qwen2": stack(biased, SWIGLU, window, SWIGLU, tie_embeddings=True),
        "qwen3": stack({**ATTENTION, "qk_norm": True}, SWIGLU),
        "gpt-neox": neox_config(VOCAB, WIDTH, 2, mixer=heads, head_dim=6, rotary_dim=4),
        "gpt": gpt_config(VOCAB, WIDTH, 2, mixer=heads, context_length=64),
        "alibi": stack(ATTENTION, MLP, position={"kind": "alibi", "heads": 4}, norm=layer),
        "xlstm-stack": xlstm_block_stack_config(
            VOCAB, WIDTH, 2, slstm_at=[1], heads=2, round_up_to=8
        ),
        "xlstm-large": xlstm_large_config(VOCAB, 32, 2, heads=2),
        "rwkv4": stack(*rwkv, norm=layer, **no_rope),
        "retnet": stack(RETENTION, SWIGLU, **no_rope),
        "hybrid": stack(window, RETENTION, {"kind": "slstm", "heads": 3}, SWIGLU),
        "convolutions": stack(convolution, {"kind": "base_conv", "taps": 3}, MLP, **no_rope),
    }


def model_of(config: ModelConfig) -> Model:
    """A model whose weights all matter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        made = Model(config)
        for parameter in made.parameters():
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    return made.eval().requires_grad_(False)


@pytest.mark.full
@pytest.mark.parametrize("family", families())
def test_a_family(family: str) -> None:
    model = model_of(families()[family])
    compiled = seqmix.compile(model, "tvm", cache=False)
    check_model(model, {"tvm": compiled}, (1, 2, 7, 31), past=33).raise_for_failures()
    wanted = generate_all(model, PROMPTS, max_new_tokens=9)
    assert generate_all(compiled, PROMPTS, max_new_tokens=9) == wanted
    assert generate_all(compiled, PROMPTS, max_new_tokens=9, prefill_chunk=3) == wanted
    assert len({token for row in wanted for token in row}) > 2
