"""Hugging Face directories: equal logits, settings of the position encoding, broken files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.plugins.checkpoint_samples import SIZES, foreign_weights, write_folder

from seqmix.checkpoint import resolve
from seqmix.errors import CheckpointError
from seqmix.model import Model
from seqmix_checkpoints.families import to_transformers
from seqmix_checkpoints.safetensors_file import read_header

YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rope", [{"rope_type": "default", "rope_theta": 300.0}, YARN])
def test_logits_equal_those_of_transformers(
    tmp_path: Path, tied: bool, rope: dict[str, Any]
) -> None:
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    torch.manual_seed(3)
    sizes = {**SIZES, "tie_word_embeddings": tied, "attention_bias": True, "mlp_bias": True}
    config = transformers.LlamaConfig(
        **sizes, rope_parameters=rope, attn_implementation="eager", pad_token_id=None
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path)
    ours = Model.from_checkpoint(resolve(tmp_path))
    again = to_transformers(transformers, ours.config, ours)
    ids = torch.randint(0, 37, (2, 29))
    positions = torch.arange(29).expand(2, 29)
    with torch.inference_mode():
        expected = theirs(ids).logits
        logits, _ = ours(ids, positions)
        torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(again(ids).logits, expected, atol=1e-5, rtol=1e-5)


def test_old_and_new_spellings_mean_the_same(tmp_path: Path) -> None:
    inner = {k: v for k, v in YARN.items() if k not in ("rope_type", "rope_theta")}
    new = resolve(write_folder(tmp_path / "new", rope_parameters=YARN)).config
    for key in ("type", "rope_type"):
        scaling = {key: "yarn", **inner}
        old = write_folder(tmp_path / key, rope_scaling=scaling, rope_theta=500.0)
        assert resolve(old).config.position == new.position
    assert new.position is not None
    assert new.position.kind == "yarn"
    assert new.position.options == {
        "theta": 500.0,
        "factor": 4.0,
        "original_context_length": 16,
    }


def test_an_explicit_factor_wins_and_a_missing_one_is_the_ratio(tmp_path: Path) -> None:
    rope = {**YARN, "factor": 3.0, "truncate": False, "attn_factor": 0.9}
    folder = write_folder(tmp_path / "a", rope_parameters=rope)
    with pytest.warns(UserWarning, match=r"factor is 3, but .* 64 / 16 = 4; the factor is taken"):
        position = resolve(folder).config.position
    assert position is not None
    assert position.options["factor"] == 3.0
    assert position.options["truncate"] is False
    assert position.options["attn_factor"] == 0.9
    del rope["factor"]
    position = resolve(write_folder(tmp_path / "b", rope_parameters=rope)).config.position
    assert position is not None
    assert position.options["factor"] == 4.0


def test_context_length_follows_a_factor_that_reaches_further(tmp_path: Path) -> None:
    rope = {**YARN, "original_max_position_embeddings": 64}
    assert resolve(write_folder(tmp_path, rope_parameters=rope)).config.context_length == 256


def test_generation_config_has_the_last_word_on_eos(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, eos_token_id=3, bos_token_id=0)
    assert resolve(folder).config.eos == [3]
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
    assert resolve(folder).config.eos == [3, 5]
    assert resolve(folder).config.bos == 0


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "mamba", "architectures": None}, "supported: llama"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 2}, "kv_heads"),
        ({"vocab_size": "37"}, "vocab_size"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_scaling": {"type": "yarn", "rope_type": "default"}}, "remove one"),
        ({"rope_parameters": {**YARN, "factr": 3}}, "did you mean 'factor'"),
        ({"rope_parameters": {**YARN, "factor": "2"}}, "factor should be a number"),
        ({"rope_parameters": {**YARN, "factor": -2.0}}, "factor"),
        ({"rope_parameters": {**YARN, "factor": float("inf")}}, "factor should be a number"),
        ({"max_position_embeddings": [64]}, "max_position_embeddings"),
        ({"model_type": None, "architectures": 5}, "supported: llama"),
        ({"head_dim": 7}, "should be even"),
        ({"head_dim": "8"}, "head_dim"),
        ({"vocab_size": 10**30}, "vocab_size: "),
        ({"dtype": "int8"}, "dtype"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"intermediate_size": 21}, "should be [21, 24], found [20, 24]"),
        ({"num_hidden_layers": 1}, "is not expected"),
    ],
)
def test_configurations_that_do_not_fit(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError) as error:
        resolve(write_folder(tmp_path, **config))
    assert said in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_a_missing_tensor_is_named_with_a_near_one(tmp_path: Path) -> None:
    weights = foreign_weights()
    weights["model.norm.weigth"] = weights.pop("model.norm.weight")
    with pytest.raises(CheckpointError, match=r"'model.norm.weight' \[24\] is missing.*weigth"):
        resolve(write_folder(tmp_path, weights))


def test_bf16_stays_bf16(tmp_path: Path) -> None:
    weights = {name: tensor.bfloat16() for name, tensor in foreign_weights().items()}
    checkpoint = resolve(write_folder(tmp_path, weights, dtype="bfloat16"))
    model = Model.from_checkpoint(checkpoint)
    assert model.dtype == torch.bfloat16
    assert torch.equal(model.state_dict()["norm.weight"], weights["model.norm.weight"])


def write_shards(folder: Path, place: str = "model-2.safetensors") -> Path:
    """Two shards; the index says that the second is called ``place``."""
    weights = foreign_weights()
    write_folder(folder, weights)
    (folder / "model.safetensors").unlink()
    names = list(weights)
    files = {name: "model-1.safetensors" if n < 9 else place for n, name in enumerate(names)}
    save_file({n: weights[n] for n in names[:9]}, folder / "model-1.safetensors")
    save_file({n: weights[n] for n in names[9:]}, folder / "model-2.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


def test_shards_are_one_model(tmp_path: Path) -> None:
    whole = resolve(write_folder(tmp_path / "whole")).weights
    parts = resolve(write_shards(tmp_path / "parts")).weights
    assert parts.digest() == whole.digest()


@pytest.mark.parametrize("place", ["../model-2.safetensors", "model-2.bin", "model-3.safetensors"])
def test_shards_elsewhere_are_refused(tmp_path: Path, place: str) -> None:
    folder = write_shards(tmp_path / "model", place)
    save_file(foreign_weights(), tmp_path / "model-2.safetensors")
    with pytest.raises(CheckpointError, match=r"model-[23]\.(safetensors|bin)"):
        resolve(folder)


def test_links_out_of_the_folder_are_refused_but_not_those_of_a_cache(tmp_path: Path) -> None:
    def linked(folder: Path, target: Path) -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = write_folder(folder) / "model.safetensors"
        file.rename(target)
        file.symlink_to(target)
        return folder

    cached = linked(tmp_path / "snapshots" / "abc", tmp_path / "blobs" / "123")
    assert len(resolve(cached).weights) == 21
    with pytest.raises(CheckpointError, match="leads out of it"):
        resolve(linked(tmp_path / "model", tmp_path / "elsewhere.safetensors"))


def test_pickles_are_refused_with_a_remedy(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin.*pickles.*save_pretrained"):
        resolve(folder)


def header_file(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "should have 8 bytes"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}, "within 8"),
        ({"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}, "within 8"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "numbers >= 0"),
        ({"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}, "F8_E4M3"),
        ({"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}, "numbers >= 0"),
        ("a string", "numbers >= 0"),
    ],
)
def test_headers_that_lie(tmp_path: Path, entry: Any, said: str) -> None:
    path = header_file(tmp_path / "x.safetensors", {"x": entry}, bytes(8))
    with pytest.raises(CheckpointError, match=said):
        read_header(path)


def test_overlapping_and_repeated_tensors(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    path = header_file(tmp_path / "x.safetensors", {"x": entry, "y": entry}, bytes(8))
    with pytest.raises(CheckpointError, match="overlapping"):
        read_header(path)
    with pytest.raises(CheckpointError, match="twice"):
        read_header(header_file(path, b'{"x": 1, "x": 2}'))


def test_a_file_that_shrinks_after_opening(tmp_path: Path) -> None:
    weights = resolve(write_folder(tmp_path)).weights
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="truncated"):
        weights.digest()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cut=st.integers(0, 3000), at=st.integers(0, 2500), byte=st.integers(0, 255))
def test_damaged_files_fail_in_one_way_or_not_at_all(
    tmp_path: Path, cut: int, at: int, byte: int
) -> None:
    path = tmp_path / "sample.safetensors"
    save_file({"x": torch.arange(300.0), "y": torch.ones(7, 3)}, path)
    data = bytearray(path.read_bytes())
    data[at % len(data)] = byte
    path.write_bytes(bytes(data[: max(0, len(data) - cut)]))
    failure = failure_of(path, len(data))
    assert failure is None or str(path) in failure


def failure_of(path: Path, size: int) -> str | None:
    try:
        tensors = read_header(path)
        arrays = [tensor() for tensor in tensors.values()]
    except CheckpointError as error:
        return str(error)
    assert all(array.nbytes <= size for array in arrays)
    return None
