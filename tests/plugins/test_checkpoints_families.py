"""What configurations of the families mean, where they lie, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.plugins.checkpoint_families import NEOX, SHARED, VARIANTS, make_pair
from tests.plugins.checkpoint_samples import foreign_weights, write_folder

from seqmix.checkpoint import resolve
from seqmix.config import BlockConfig, Kind, ModelConfig, NormConfig
from seqmix.errors import CheckpointError
from seqmix.model import Model
from seqmix_checkpoints.families import family_of_model, to_transformers
from seqmix_checkpoints.foreign_config import config_of, family_of
from seqmix_checkpoints.layouts import FAMILIES

QWEN: dict[str, Any] = {"model_type": "qwen2", **SHARED, "num_hidden_layers": 4}
QWEN_WINDOW = {**QWEN, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 3}
OLD_NEOX: dict[str, Any] = {
    "model_type": "gpt_neox",
    **{k: v for k, v in NEOX.items() if k != "rope_parameters"},
}


def config(data: dict[str, Any]) -> ModelConfig:
    return config_of(data, family_of(data, "here"), "tiny", "here")


def attention(data: dict[str, Any], layer: int = 0) -> dict[str, Any]:
    made = config(data)
    return made.branches()[2 * layer].options


def windows(data: dict[str, Any]) -> list[int | None]:
    return [kind.options.get("window") for kind in config(data).branches()[::2]]


def test_what_is_not_said_is_what_transformers_takes_for_it() -> None:
    bare = {k: v for k, v in SHARED.items() if k not in ("num_key_value_heads", "head_dim")}
    bare |= {"num_attention_heads": 64, "hidden_size": 128}
    mistral = attention({"model_type": "mistral", **bare})
    assert (mistral["kv_heads"], mistral["window"], mistral["head_dim"]) == (8, 4096, 2)
    assert (
        attention({"model_type": "mistral", **bare, "sliding_window": None}).get("window") is None
    )
    assert (
        attention({"model_type": "mistral", **bare, "num_key_value_heads": None})["kv_heads"] == 64
    )
    assert attention({"model_type": "qwen2", **bare})["kv_heads"] == 32
    qwen3 = attention({"model_type": "qwen3", **bare})
    assert (qwen3["kv_heads"], qwen3["head_dim"]) == (32, 128)
    assert attention({"model_type": "llama", **bare})["kv_heads"] == 64


def test_biases_and_norms_follow_the_family() -> None:
    def of(kind: str, **more: Any) -> tuple[bool, ...]:
        options = attention({"model_type": kind, **SHARED, **more})
        return tuple(bool(options.get(k)) for k in ("bias", "output_bias", "qk_norm"))

    assert of("qwen2") == (True, False, False)
    assert of("mistral") == (False, False, False)
    assert of("qwen3") == (False, False, True)
    assert of("qwen3", attention_bias=True) == (True, True, True)
    assert of("llama", attention_bias=True) == (True, True, False)
    made = attention({"model_type": "qwen3", **SHARED, "rms_norm_eps": 3e-4})
    assert made["qk_norm_eps"] == 3e-4


def test_windows_of_layers() -> None:
    assert windows(QWEN) == [None] * 4
    assert windows({**QWEN, "sliding_window": 9}) == [None] * 4
    assert windows(QWEN_WINDOW) == [None, None, None, 9]
    kinds = ["sliding_attention", "full_attention"] * 2
    assert windows({**QWEN_WINDOW, "layer_types": kinds}) == [9, None, 9, None]
    made = config(QWEN_WINDOW)
    assert [block.repeat for block in made.blocks] == [3, 1]
    mistral = {**QWEN, "model_type": "mistral", "sliding_window": 7}
    assert windows(mistral) == [7] * 4
    assert windows({**mistral, "layer_types": ["sliding_attention"] * 4}) == [7] * 4


def test_neox_settings_old_and_new() -> None:
    old = config({**OLD_NEOX, "rotary_pct": 0.5, "rotary_emb_base": 300})
    new = config({"model_type": "gpt_neox", **NEOX})
    assert old == new
    assert old.position == Kind(kind="rope", theta=300.0, rotary_dim=4)
    assert [len(step) for step in old.steps()] == [2, 2]
    assert old.norm == NormConfig(kind="layer", eps=1e-5)
    quarter = config(OLD_NEOX).position
    assert quarter is not None
    assert quarter.options["rotary_dim"] == 2
    whole = config({**OLD_NEOX, "rotary_pct": 1.0}).position
    assert whole is not None
    assert "rotary_dim" not in whole.options


def test_yarn_of_a_part_of_a_head() -> None:
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
    position = config({**OLD_NEOX, "rotary_pct": 0.5, "rope_scaling": rope}).position
    assert position is not None
    assert (position.kind, position.options["rotary_dim"]) == ("yarn", 4)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("gelu", "gelu"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_fast", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("relu", "relu"),
    ],
)
def test_activations(name: str, ours: str) -> None:
    made = config({**OLD_NEOX, "hidden_act": name})
    assert made.branches()[1].options["activation"] == ours


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({**QWEN, "model_type": "qwen4"}, "'qwen4' is not supported; did you mean 'qwen"),
        ({**QWEN, "model_type": "gemma3"}, "supported: llama, mistral, qwen2, qwen3, gpt_neox"),
        ({**QWEN, "model_type": "qwen2_moe"}, "'qwen2_moe' is not supported"),
        ({**QWEN, "rope_parameters": {"rope_type": "longrope"}}, "needs 'short_factor'"),
        ({**QWEN, "partial_rotary_factor": 0.5}, "partial_rotary_factor should be 1"),
        ({**QWEN, "hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({**QWEN, "layer_types": ["full_attention"]}, "layer_types should have 4 entries"),
        ({**QWEN, "layer_types": ["linear_attention"] * 4}, "layer_types should have 4 entries"),
        ({**QWEN, "layer_types": [[]] * 4}, "layer_types should have 4 entries"),
        ({**QWEN, "layer_types": ["sliding_attention"] * 4}, "expected full_attention"),
        ({**QWEN_WINDOW, "max_window_layers": None}, "max_window_layers"),
        ({**QWEN_WINDOW, "sliding_window": 0}, "sliding_window should be"),
        ({**QWEN_WINDOW, "sliding_window": "9"}, "sliding_window should be"),
        ({**QWEN_WINDOW, "use_sliding_window": "yes"}, "use_sliding_window should be"),
        ({**QWEN, "model_type": "mistral", "sliding_window": -3}, "sliding_window should be"),
        ({**OLD_NEOX, "hidden_act": "gelu_10"}, "hidden_act 'gelu_10' is not supported"),
        ({**OLD_NEOX, "rotary_pct": 0.4}, "0.4 of a head of 8 should be an even number"),
        ({**OLD_NEOX, "rotary_pct": 0.0}, "should be an even number"),
        ({**OLD_NEOX, "rotary_pct": 1.5}, "should be an even number"),
        ({**OLD_NEOX, "rotary_pct": "x"}, "partial_rotary_factor should be a number"),
        ({**OLD_NEOX, "num_attention_heads": 5}, "hidden_size 24 should be a multiple"),
        ({**OLD_NEOX, "use_parallel_residual": 1}, "use_parallel_residual should be true"),
    ],
)
def test_what_is_refused(data: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError) as error:
        config(data)
    assert said in str(error.value)
    assert str(error.value).startswith("here: ")


def test_weights_of_another_family_are_named(tmp_path: Path) -> None:
    weights = foreign_weights()
    with pytest.raises(CheckpointError, match=r"q_norm\.weight' \[8\] is missing"):
        resolve(write_folder(tmp_path / "a", weights, model_type="qwen3"))
    with pytest.raises(CheckpointError, match=r"q_proj\.bias' \[24\] is missing"):
        resolve(write_folder(tmp_path / "b", weights, model_type="qwen2"))
    biased = {**weights, "model.layers.0.self_attn.q_proj.bias": torch.zeros(24)}
    with pytest.raises(CheckpointError, match=r"q_proj\.bias' \[24\] is not expected"):
        resolve(write_folder(tmp_path / "c", biased, model_type="mistral"))


@pytest.fixture(scope="module")
def neox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("neox")
    make_pair("neox", folder)
    return folder


def test_old_names_and_buffers_of_neox(tmp_path: Path, neox: Path) -> None:
    weights = load_file(neox / "model.safetensors")
    expected = resolve(neox).weights.digest()
    head = [name for name in weights if name in ("lm_head.weight", "embed_out.weight")]
    for name in ("lm_head.weight", "embed_out.weight"):
        old = {k: v for k, v in weights.items() if k not in head}
        old[name] = weights[head[0]]
        for layer in (0, 1):
            at = f"gpt_neox.layers.{layer}.attention"
            old[f"{at}.bias"] = torch.ones(1, 1, 4, 4, dtype=torch.bool)
            old[f"{at}.masked_bias"] = torch.tensor(-1e9)
            old[f"{at}.rotary_emb.inv_freq"] = torch.ones(2)
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text((neox / "config.json").read_text())
        save_file(old, folder / "model.safetensors")
        assert resolve(folder).weights.digest() == expected


def test_a_fused_projection_of_other_heads(tmp_path: Path, neox: Path) -> None:
    weights = load_file(neox / "model.safetensors")
    name = "gpt_neox.layers.0.attention.query_key_value.weight"
    data = json.loads((neox / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(data))
    save_file({**weights, name: weights[name][:-1]}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"{name}' \[71, 24\].*multiple of 9"):
        resolve(tmp_path)
    del weights[name]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"{name} \(query\)' \[24, 24\] is missing"):
        resolve(tmp_path)


def model_config(*steps: Any, norm: str = "rms", **more: Any) -> ModelConfig:
    data = {
        "vocab_size": 41,
        "width": 24,
        "context_length": 64,
        "head_dim": 8,
        "position": {"kind": "rope"},
        "norm": {"kind": norm},
        "blocks": [{"steps": list(steps)}],
        **more,
    }
    return ModelConfig.model_validate(data)


ATTENTION = {"kind": "attention", "heads": 3, "head_dim": 8}
SWIGLU = {"kind": "swiglu", "hidden": 20}
MLP = {"kind": "mlp", "hidden": 20}
BIASED = {**ATTENTION, "bias": True}
BOTH = {**BIASED, "output_bias": True}


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (model_config(ATTENTION, SWIGLU), "llama"),
        (model_config(BOTH, {**SWIGLU, "bias": True}), "llama"),
        (model_config({**ATTENTION, "window": 3}, SWIGLU), "mistral"),
        (model_config(BIASED, SWIGLU, {**BIASED, "window": 3}, SWIGLU), "qwen2"),
        (model_config({**BOTH, "qk_norm": True}, SWIGLU, norm="rms"), None),
        (model_config({**ATTENTION, "qk_norm": True, "qk_norm_eps": 1e-5}, SWIGLU), "qwen3"),
        (model_config([BOTH, MLP], norm="layer"), "gpt_neox"),
        (model_config(ATTENTION, MLP, norm="layer"), "gpt_neox"),
        (model_config(BIASED, MLP, norm="layer"), None),
        (model_config(ATTENTION, {**MLP, "bias": False}, norm="layer"), None),
        (model_config([BOTH, SWIGLU]), None),
        (model_config(ATTENTION, MLP), None),
        (model_config(SWIGLU, ATTENTION), None),
        (model_config(ATTENTION, SWIGLU, ATTENTION), None),
        (model_config({**ATTENTION, "window": 3}, SWIGLU, ATTENTION, SWIGLU), None),
        (model_config(ATTENTION, SWIGLU, {**ATTENTION, "kv_heads": 1}, SWIGLU), None),
        (model_config({**ATTENTION, "scale": 0.5}, SWIGLU), None),
    ],
)
def test_the_family_of_a_model(made: ModelConfig, name: str | None) -> None:
    if name is not None:
        assert family_of_model(made) is FAMILIES[name]
        return
    with pytest.raises(CheckpointError, match="belongs to no family of transformers"):
        family_of_model(made)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"position": {"kind": "rope", "rotary_dim": 4}}, "rotates 4 of 8"),
        ({"position": {"kind": "rope", "layout": "interleaved"}}, "'half' only"),
        ({"position": None}, "found None"),
    ],
)
def test_encodings_that_transformers_lacks(changed: dict[str, Any], said: str) -> None:
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    made = model_config(ATTENTION, SWIGLU, **changed)
    with pytest.raises(CheckpointError, match=said):
        to_transformers(transformers, made, Model(made))


def test_configurations_round_trip_through_json(tmp_path: Path) -> None:
    for variant in VARIANTS:
        prefix, settings = VARIANTS[variant]
        kind = {f.model: f.name for f in FAMILIES.values()}[prefix]
        made = config({"model_type": kind, **settings})
        assert ModelConfig.model_validate_json(made.to_json()) == made
        assert all(isinstance(block, BlockConfig) for block in made.blocks)
        Model(made)
