"""xLSTM checkpoints: read, and written back. The weights and results are those of real peers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.plugins.xlstm_samples import (
    LARGE_OPTIONS,
    STACK_OPTIONS,
    cuda_layout,
    fused,
    golden,
    hugging_face_weights,
    large_weights,
    stack_weights,
    write_hugging_face,
)
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor

from seqmix.checkpoint import Checkpoint, resolve
from seqmix.config import ModelConfig
from seqmix.errors import CheckpointError
from seqmix.model import Model
from seqmix.storage import save_model
from seqmix_xlstm.checkpoints import (
    read_bare_stack,
    read_block_stack,
    read_large,
    to_hugging_face,
)
from seqmix_xlstm.families import xlstm_block_stack_config, xlstm_large_config

STACK = {**STACK_OPTIONS, "vocab_size": 48}


def relative_error(found: Tensor, wanted: Tensor) -> float:
    assert found.shape == wanted.shape
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def run(checkpoint: Checkpoint, ids: Tensor) -> Tensor:
    model = Model.from_checkpoint(checkpoint).eval()
    with torch.inference_mode():
        logits, _ = model(ids, torch.arange(ids.shape[1]).expand_as(ids))
    return logits


def large_error(checkpoint: Checkpoint) -> float:
    arrays = golden("xlstm_large")
    return relative_error(run(checkpoint, arrays["ids"]), arrays["logits"])


def stack_error(checkpoint: Checkpoint) -> float:
    """The head shows all channels of a token, so that the logits begin with the stack's output."""
    arrays = golden("xlstm_block_stack")
    logits = run(checkpoint, torch.arange(48).reshape(2, 24))
    assert not logits[..., 32:].any()
    return relative_error(logits[..., :32], arrays["y"])


@pytest.mark.parametrize("mode", ["single", "fused"])
def test_large_model_in_memory(mode: str) -> None:
    weights = large_weights() if mode == "single" else fused(large_weights())
    checkpoint = read_large(weights, {**LARGE_OPTIONS, "weight_mode": mode})
    assert large_error(checkpoint) < 1e-5
    wanted = xlstm_large_config(29, 32, 2, heads=2, ffn_round_up_to=16)
    assert checkpoint.config == wanted


def test_large_model_as_the_package_writes_it(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="YAML needs the package pyyaml")
    lines = [f"{key}: {json.dumps(value)}" for key, value in LARGE_OPTIONS.items()]
    (tmp_path / "config.yaml").write_text("\n".join(lines), encoding="utf-8")
    weights = list(large_weights().items())
    for number in range(3):
        save_file(dict(weights[number::3]), tmp_path / f"model_{number}.safetensors")
    checkpoint = resolve(tmp_path)
    assert large_error(checkpoint) < 1e-5
    assert checkpoint.config.name == tmp_path.name
    assert checkpoint.source == str(tmp_path)


@pytest.mark.parametrize("backend", ["vanilla", "cuda"])
def test_block_stack_in_memory(backend: str) -> None:
    weights = stack_weights() if backend == "vanilla" else cuda_layout(stack_weights())
    group = {**STACK["slstm_block"], "slstm": {"num_heads": 2, "backend": backend}}
    checkpoint = read_block_stack(weights, {**STACK, "slstm_block": group})
    assert stack_error(checkpoint) < 1e-5
    sizes: dict[str, Any] = {"slstm_at": [1], "heads": 2, "round_up_to": 16, "clip": 0}
    assert checkpoint.config == xlstm_block_stack_config(48, 32, 2, **sizes)


@pytest.mark.parametrize("backend", ["vanilla", "cuda"])
def test_the_shape_of_r_tells_the_backend_that_is_not_written(backend: str) -> None:
    weights = stack_weights() if backend == "vanilla" else cuda_layout(stack_weights())
    group = {**STACK["slstm_block"], "slstm": {"num_heads": 2}}
    assert stack_error(read_block_stack(weights, {**STACK, "slstm_block": group})) < 1e-5


def test_a_backend_that_did_not_write_r_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"backend 'vanilla', found \[2, 16, 64\].*'cuda'"):
        read_block_stack(cuda_layout(stack_weights()), STACK)
    read = read_block_stack(cuda_layout(stack_weights()), STACK, backend="cuda")
    assert stack_error(read) < 1e-5


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".ckpt of a trainer"])
def test_block_stack_as_files(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(STACK), encoding="utf-8")
    if suffix == ".safetensors":
        save_file(stack_weights(), tmp_path / "stack.safetensors")
    elif suffix == ".pt":
        torch.save(stack_weights(), tmp_path / "stack.pt")
    else:
        torch.save({"state_dict": stack_weights(), "epoch": 3}, tmp_path / "stack.pt")
    checkpoint = resolve(tmp_path)
    assert stack_error(checkpoint) < 1e-5
    assert checkpoint.weights.digest() == resolve(tmp_path).weights.digest()


def test_models_own_their_weights() -> None:
    weights = stack_weights()
    model = Model.from_checkpoint(read_block_stack(weights, STACK))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    assert all(tensor.equal(stack_weights()[name]) for name, tensor in weights.items())


def test_bare_stack_fills_a_model_that_has_an_embedding() -> None:
    checkpoint = read_bare_stack(stack_weights(""), STACK)
    model = Model(checkpoint.config)
    tensors = {name: checkpoint.weights.torch(name) for name in checkpoint.weights.names()}
    found = model.load_state_dict(tensors, strict=False)
    assert found.missing_keys == ["embed.weight", "head.weight"]
    assert not found.unexpected_keys
    assert read_bare_stack(stack_weights(""), STACK_OPTIONS).config.vocab_size == 1


def test_gates_of_slstm_change_their_names() -> None:
    weights = stack_weights()
    read = read_block_stack(weights, STACK).weights
    at = "xlstm_block_stack.blocks.1.xlstm."
    assert read.torch("steps.1.branches.0.mixer.input_gate.weight").equal(
        weights[f"{at}fgate.weight"]
    )
    assert read.torch("steps.1.branches.0.mixer.forget_gate.weight").equal(
        weights[f"{at}igate.weight"]
    )
    bias = weights[f"{at}slstm_cell._bias_"].reshape(4, 2, 16)
    assert read.torch("steps.1.branches.0.mixer.bias").equal(bias.transpose(0, 1))


def test_tied_embeddings_and_norms_without_weight() -> None:
    weights = stack_weights()
    weights["lm_head.weight"] = weights["token_embedding.weight"]
    slstm = {**STACK["slstm_block"]["slstm"], "group_norm_weight": False}
    del weights["xlstm_block_stack.blocks.1.xlstm.group_norm.weight"]
    group = {**STACK["slstm_block"], "slstm": slstm}
    options = {**STACK, "tie_weights": True, "slstm_block": group}
    checkpoint = read_block_stack(weights, options)
    assert checkpoint.config.tie_embeddings
    assert "head.weight" not in checkpoint.weights
    assert checkpoint.weights.torch("steps.1.branches.0.mixer.norm.weight").equal(torch.ones(32))
    assert run(checkpoint, torch.arange(7).reshape(1, 7)).isfinite().all()


def test_stacks_without_slstm_feed_forward_or_convolution() -> None:
    names = stack_weights()
    only = {k: v for k, v in names.items() if ".blocks.1." not in k}
    matrix = {**STACK, "num_blocks": 1, "slstm_at": [], "slstm_block": None}
    assert len(read_block_stack(only, matrix).config.steps()) == 1
    scalar = {
        k.replace("blocks.1.", "blocks.0."): v
        for k, v in names.items()
        if ".blocks.0." not in k and "ffn" not in k and "conv1d" not in k
    }
    slstm = {"num_heads": 2, "conv1d_kernel_size": 0, "backend": "vanilla"}
    group = {"slstm": slstm, "feedforward": None}
    options = {**STACK, "num_blocks": 1, "mlstm_block": None, "slstm_block": group}
    checkpoint = read_block_stack(scalar, options)
    assert [kind.kind for kind in checkpoint.config.branches()] == ["slstm"]
    assert run(checkpoint, torch.arange(5).reshape(1, 5)).isfinite().all()


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("mode", ["single", "fused"])
def test_hugging_face_directories(tmp_path: Path, shards: int, mode: str) -> None:
    weights = hugging_face_weights()
    weights = weights if mode == "single" else fused(weights)
    folder = write_hugging_face(tmp_path / "m", weights, shards, weight_mode=mode)
    checkpoint = resolve(folder)
    assert large_error(checkpoint) < 1e-5
    assert checkpoint.config.name == "m"
    assert (checkpoint.config.bos, checkpoint.config.eos) == (0, [2])
    assert not checkpoint.weights.names()[0].startswith("backbone")


def test_without_this_reader_the_model_type_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_hugging_face(tmp_path / "m")
    monkeypatch.setenv("SEQMIX_BLOCK_PLUGINS", "xlstm")
    with pytest.raises(CheckpointError, match="model type 'xlstm' is not supported"):
        resolve(folder)


def test_names_of_the_package_in_a_hugging_face_config(tmp_path: Path) -> None:
    sizes = {"hidden_size": ..., "num_hidden_layers": ..., "embedding_dim": 32, "num_blocks": 2}
    folder = write_hugging_face(tmp_path / "m", chunk_size=8, eps=1e-5, **sizes)
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 4]}', encoding="utf-8")
    config = resolve(folder).config
    assert config.eos == [3, 4]
    assert config.steps()[0][0].options["chunk"] == 8
    assert config.steps()[0][0].options["eps"] == 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("tied", [False, True])
def test_writing_hugging_face_back_is_bitwise(
    tmp_path: Path, dtype: torch.dtype, tied: bool
) -> None:
    weights = {k: (v + 0.1).to(dtype) for k, v in hugging_face_weights().items()}
    if tied:
        del weights["lm_head.weight"]
    name = str(dtype).removeprefix("torch.")
    write_hugging_face(tmp_path / "a", weights, dtype=name, tie_word_embeddings=tied)
    model = Model.from_checkpoint(resolve(tmp_path / "a"))
    to_hugging_face(model, tmp_path / "b")
    written = load_file(tmp_path / "b" / "model.safetensors")
    assert written.keys() == weights.keys()
    assert all(written[k].dtype == dtype and written[k].equal(v) for k, v in weights.items())
    again = resolve(tmp_path / "b").config
    assert again.model_copy(update={"name": "a"}) == model.config


@pytest.mark.parametrize("hidden", [1, 17, 86, 96, 101])
def test_any_feed_forward_width_survives(tmp_path: Path, hidden: int) -> None:
    config = xlstm_large_config(7, 24, 1, heads=2, ffn_factor=hidden / 24, ffn_round_up_to=1)
    data = config.model_dump()
    data["blocks"][0]["steps"][1]["hidden"] = hidden
    model = Model(ModelConfig.model_validate({**data, "bos": None, "eos": [3, 4]}))
    to_hugging_face(model, tmp_path / "xlstm-large")
    assert resolve(tmp_path / "xlstm-large").config == model.config


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"logit_soft_cap": 0}, "soft caps"),
        ({"gate_soft_cap": 0}, "soft caps"),
        ({"norm": {"kind": "rms", "eps": 1e-3}}, "one eps"),
        ({"input_gate": "sigmoid"}, "exponential input gate"),
        ({"bias": True}, "without biases"),
        ({"activation": "gelu"}, "silu"),
        ({"kind": "mlstm_up"}, "mlstm and a swiglu"),
        ({"repeat": 1, "more": True}, "all alike"),
    ],
)
def test_what_transformers_does_not_have_is_not_written(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    data = xlstm_large_config(7, 24, 2, heads=2).model_dump()
    steps = data["blocks"][0]["steps"]
    if "kind" in changes:
        steps[0] = {"kind": "mlstm_up", "heads": 2}
    elif "more" in changes:
        other = [{**steps[0], "heads": 4}, steps[1]]
        data["blocks"] = [{"steps": steps}, {"steps": other}]
    elif changes.keys() <= {"logit_soft_cap", "norm"}:
        data |= changes
    else:
        steps[1 if "activation" in changes else 0] |= changes
    with pytest.raises(CheckpointError, match=said):
        to_hugging_face(Model(ModelConfig.model_validate(data)), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_directory_with_a_tokenizer_brings_it(tmp_path: Path) -> None:
    model = Model(xlstm_large_config(13, 24, 1, heads=2))
    to_hugging_face(model, tmp_path / "theirs")
    save_model(model, tmp_path / "ours")
    for folder in (tmp_path / "theirs", tmp_path / "ours"):
        assert resolve(folder).tokenizer is None
        Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(folder / "tokenizer.json"))
        found = resolve(folder).tokenizer
        assert found is not None
        assert found.encode("b") == [1]


def test_a_block_stack_in_safetensors_beside_config_json(tmp_path: Path) -> None:
    weights = stack_weights()
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(STACK))
    assert resolve(tmp_path).config.blocks == read_block_stack(weights, STACK).config.blocks
