"""xLSTM checkpoints that are wrong: each is refused with file, name, expected and found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.plugins.xlstm_samples import (
    BIAS,
    LARGE_OPTIONS,
    RECURRENT,
    STACK_OPTIONS,
    hugging_face_weights,
    large_weights,
    nested,
    stack_weights,
    write_hugging_face,
)

from seqmix.checkpoint import resolve
from seqmix.errors import CheckpointError
from seqmix_xlstm.checkpoints import read_bare_stack, read_block_stack, read_large

STACK = {**STACK_OPTIONS, "vocab_size": 48}
EMBEDDING = "backbone.embeddings.weight"
Q = "backbone.blocks.0.mlstm_layer.q.weight"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("bias", True),
        ("add_post_blocks_norm", False),
        ("vocab_size", None),
        ("num_blocks", 10**11),
        ("num_blocks", "2"),
        ("slstm_at", [2]),
        ("slstm_at", "some"),
        ("slstm_at", [True]),
        ("slstm_at", {"1": 1}),
        ("slstm_block", 7),
        ("tie_weights", 1),
        ("context_length", -2),
        ("mlstm_block.mlstm.proj_factor", 0),
        ("mlstm_block.mlstm.num_heads", 3),
        ("mlstm_block.mlstm.qkv_proj_blocksize", 5),
        ("slstm_block.slstm.function", "lstm"),
        ("slstm_block.slstm.backend", "triton"),
        ("slstm_block.slstm.num_states", 2),
        ("slstm_block.slstm.forward_clipval", 3.0),
        ("slstm_block.slstm.gradient_recurrent_cut", True),
        ("slstm_block.slstm.initial_val", 1.0),
        ("slstm_block.feedforward.act_fn", "relu^2"),
        ("slstm_block.feedforward.ff_type", "ffn"),
        ("slstm_block.feedforward.proj_factor", float("nan")),
    ],
)
def test_stack_options_that_are_wrong_or_not_ours(path: str, value: Any) -> None:
    with pytest.raises(CheckpointError) as error:
        read_block_stack(stack_weights(), nested(STACK, path, value))
    name = path.rpartition(".")[2]
    assert name in str(error.value) or name in ("num_heads", "qkv_proj_blocksize")
    assert "config: " in str(error.value)


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("num_block", "num_blocks"),
        ("mlstm_block.mlstm.conv1d_kernelsize", "conv1d_kernel_size"),
        ("slstm_block.slstm.num_head", "num_heads"),
        ("slstm_block.feedforward.act", "act_fn"),
        ("slstm_block.ffn", "feedforward"),
    ],
)
def test_unknown_stack_options(path: str, near: str) -> None:
    with pytest.raises(CheckpointError, match=f"unknown option '{path}'") as error:
        read_block_stack(stack_weights(), nested(STACK, path, 1))
    assert near in str(error.value)


def test_a_rounding_down_is_refused_where_it_matters() -> None:
    options = nested(STACK, "mlstm_block.mlstm.round_proj_up_dim_up", False)
    read_block_stack(stack_weights(), options)
    options = nested(options, "mlstm_block.mlstm.proj_factor", 2.1)
    with pytest.raises(CheckpointError, match="round_proj_up_dim_up should be true"):
        read_block_stack(stack_weights(), options)


def test_small_clips_of_cuda_change_results_there() -> None:
    path = "slstm_block.slstm.gradient_recurrent_clipval"
    checkpoint = read_block_stack(stack_weights(), nested(STACK, path, 0.5))
    assert checkpoint.config.branches()[1].options["clip"] == 0.5
    with pytest.raises(CheckpointError, match="clips h by it too"):
        read_block_stack(
            stack_weights(),
            nested(
                nested(STACK, path, 0.5),
                path.replace("gradient_recurrent_clipval", "backend"),
                "cuda",
            ),
        )


def test_a_backend_that_there_is_not() -> None:
    with pytest.raises(CheckpointError, match="'cuda' or 'vanilla', found 'tpu'"):
        read_block_stack(stack_weights(), STACK, backend="tpu")


def test_bare_stacks_and_language_models_are_told_apart() -> None:
    with pytest.raises(CheckpointError, match="read_bare_stack"):
        read_block_stack(stack_weights(""), STACK)
    with pytest.raises(CheckpointError, match="is missing"):
        read_bare_stack(stack_weights(), STACK)


@pytest.mark.parametrize("name", [RECURRENT, BIAS])
def test_misshapen_tensors_of_a_cell(name: str) -> None:
    weights = stack_weights()
    name = f"xlstm_block_stack.{name}"
    weights[name] = weights[name][:1]
    with pytest.raises(CheckpointError) as error:
        read_block_stack(weights, STACK)
    assert f"'{name}' should be " in str(error.value)
    assert f"found {list(weights[name].shape)}" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_bias": True}, "use_bias should be false"),
        ({"add_out_norm": False}, "add_out_norm should be true"),
        ({"weight_mode": "both"}, "weight_mode should be 'single' or 'fused'"),
        ({"chunkwise_kernel": "chunkwise--triton_xl_chunk_siging"}, "exponential input gate"),
        ({"gate_soft_cap": 0}, "gate_soft_cap should be a number > 0"),
        ({"num_heads": 5}, "heads"),
        ({"num_blocks": 10**11}, "num_blocks should be at most"),
        ({"embedding_dim": None}, "embedding_dim should be a whole number"),
        ({"embedding_dim": 2**62}, "embedding_dim"),
        ({"embedding_dim": 2**36}, "config"),
        ({"qk_dim_factor": 1e-9}, "config"),
        ({"ffn_proj_factor": 1e11}, "config"),
        ({"num_layers": 2}, "unknown option 'num_layers'"),
    ],
)
def test_large_options_that_are_wrong_or_not_ours(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError) as error:
        read_large(large_weights(), {**LARGE_OPTIONS, **changes})
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_bias": True}, "use_bias should be false"),
        ({"num_blocks": 3}, "num_blocks should be 2, as num_hidden_layers is"),
        ({"embedding_dim": 64}, "embedding_dim should be 32, as hidden_size is"),
        ({"num_hidden_layers": 10**11}, "num_hidden_layers should be at most"),
        ({"dtype": "int8"}, "dtype should be"),
        ({"dtype": ["float32"]}, "dtype should be"),
        ({"eos_token_id": "end"}, "eos_token_id should be token ids"),
        ({"bos_token_id": -1}, "bos_token_id should be token ids"),
        ({"quantization_config": {"bits": 4}}, "only plain weights"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings should be true or false"),
        ({"vocab_size": 30}, "should be [30, 32], found [29, 32]"),
        ({"qk_dim_factor": 1.0}, f"'{Q}' should be [32, 32], found [16, 32]"),
    ],
)
def test_hugging_face_options(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    folder = write_hugging_face(tmp_path / "m", **changes)
    with pytest.raises(CheckpointError) as error:
        resolve(folder)
    assert said in str(error.value)
    assert str(folder) in str(error.value)


def test_missing_unknown_and_misshapen_tensors_are_listed(tmp_path: Path) -> None:
    weights = hugging_face_weights()
    weights["backbone.embedding.weight"] = weights.pop(EMBEDDING)
    weights[Q] = weights[Q][:7]
    weights["extra"] = torch.zeros(3)
    with pytest.raises(CheckpointError) as error:
        resolve(write_hugging_face(tmp_path / "m", weights))
    said = str(error.value)
    assert f"'{EMBEDDING}' [29, 32] is missing" in said
    assert "did you mean 'backbone.embedding.weight'" in said
    assert "'extra' [3] is not expected" in said
    assert f"'{Q}' should be [16, 32], found [7, 32]" in said


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[" * 200_000, b"[1]", b'{"a": ' + b"1" * 5000 + b"}"]
)
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "index"])
def test_unreadable_json(tmp_path: Path, file: str, data: bytes) -> None:
    folder = write_hugging_face(tmp_path / "m")
    name = "model.safetensors.index.json" if file == "index" else file
    (folder / name).write_bytes(data)
    with pytest.raises(CheckpointError):
        resolve(folder)


@pytest.mark.parametrize(
    "file", ["../m.safetensors", "/etc/passwd", "a\0.safetensors", "x" * 5000, "loop.safetensors"]
)
def test_shards_outside_of_the_folder(tmp_path: Path, file: str) -> None:
    folder = write_hugging_face(tmp_path / "m")
    save_file(hugging_face_weights(), tmp_path / "m.safetensors")
    (folder / "loop.safetensors").symlink_to(folder / "loop.safetensors")
    index = {"weight_map": dict.fromkeys(hugging_face_weights(), file)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="files of this folder"):
        resolve(folder)


@pytest.mark.parametrize("change", ["moved", "unlisted"])
def test_index_and_shards_that_do_not_agree(tmp_path: Path, change: str) -> None:
    folder = write_hugging_face(tmp_path / "m", shards=2)
    index = folder / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    files = sorted(set(places.values()))
    if change == "moved":
        places[Q] = files[1 - files.index(places[Q])]
    else:
        del places[Q]
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(CheckpointError, match=f"index.json: tensor '{Q}'"):
        resolve(folder)


def test_truncated_and_foreign_files(tmp_path: Path) -> None:
    folder = write_hugging_face(tmp_path / "m")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="the file is truncated or damaged"):
        resolve(folder)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"expected model\.safetensors"):
        resolve(folder)
    with pytest.raises(CheckpointError, match="expected weights"):
        read_large(tmp_path / "weights.npz", LARGE_OPTIONS)
    with pytest.raises(CheckpointError, match="dtype of"):
        read_large({"a": torch.zeros(2, dtype=torch.int64)}, LARGE_OPTIONS)
    with pytest.raises(CheckpointError, match="dense and have memory"):
        read_large({"a": torch.zeros(2, device="meta")}, LARGE_OPTIONS)
    no_tensors: Any = {"a": [1]}
    with pytest.raises(CheckpointError, match="should be a tensor, found list"):
        read_large(no_tensors, LARGE_OPTIONS)


def test_yaml_that_unfolds_stays_small(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="YAML needs the package pyyaml")
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    path = tmp_path / "config.yaml"
    path.write_text("\n".join([*lines, "vocab_size: *a29"]), encoding="utf-8")
    with pytest.raises(CheckpointError, match="unfolds to more than"):
        read_large(large_weights(), path)
    path.write_text("\n".join(["a: [", *lines]), encoding="utf-8")
    with pytest.raises(CheckpointError, match="no readable YAML"):
        read_large(large_weights(), path)


class Harmful:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_pickles_run_no_code(tmp_path: Path) -> None:
    torch.save({"a": Harmful(tmp_path / "harmful")}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="tensors alone"):
        read_large(tmp_path / "a.pt", LARGE_OPTIONS)
    assert not (tmp_path / "harmful").exists()
    (tmp_path / "b.pt").write_bytes(b"no pickle")
    with pytest.raises(CheckpointError, match=r"b\.pt"):
        read_large(tmp_path / "b.pt", LARGE_OPTIONS)
    torch.save([torch.zeros(2)], tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match="dictionary of tensors"):
        read_large(tmp_path / "c.pt", LARGE_OPTIONS)


def test_directories_of_the_package_with_too_many_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(STACK))
    for name in ("a.pt", "b.pt"):
        torch.save(stack_weights(), tmp_path / name)
    with pytest.raises(CheckpointError, match=r"found a\.pt, b\.pt"):
        resolve(tmp_path)
