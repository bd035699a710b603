"""GGUF files: the layout of queries and keys, metadata, tokenizer, damaged files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.plugins.checkpoint_samples import foreign_weights, interleave, write_folder, write_gguf

from seqmix.checkpoint import resolve
from seqmix.errors import CheckpointError
from seqmix.model import Model
from seqmix_checkpoints.gguf_file import half_layout
from seqmix_checkpoints.gguf_header import read_header

pytest.importorskip("gguf", reason="GGUF files need the package gguf")


def test_half_layout_undoes_the_converter_and_is_not_the_identity() -> None:
    weight = torch.arange(24 * 5.0).reshape(24, 5)
    permuted = interleave(weight, 3)
    assert not np.array_equal(permuted, weight.numpy())
    assert np.array_equal(half_layout(3)(permuted), weight.numpy())
    assert not np.array_equal(half_layout(1)(permuted), weight.numpy())
    assert half_layout(3)(permuted[:, 0]).shape == (24,)


@pytest.mark.parametrize("yarn", [False, True])
def test_the_same_model_as_from_hugging_face(tmp_path: Path, yarn: bool) -> None:
    weights = foreign_weights()
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
    settings = {"rope_parameters": rope, "max_position_embeddings": 128} if yarn else {}
    expected = resolve(write_folder(tmp_path / "folder", weights, **settings))
    found = resolve(write_gguf(tmp_path / "tiny.gguf", weights, yarn))
    assert found.config.position == expected.config.position
    assert found.config.context_length == expected.config.context_length
    assert found.config.norm == expected.config.norm
    assert found.weights.digest() == expected.weights.digest()
    ids, positions = torch.tensor([[3, 1, 4, 1, 5, 9, 2]]), torch.arange(7).unsqueeze(0)
    with torch.inference_mode():
        logits = [Model.from_checkpoint(c)(ids, positions)[0] for c in (expected, found)]
    assert torch.equal(*logits)


def test_a_head_that_is_missing_is_the_embedding(tmp_path: Path) -> None:
    weights = foreign_weights()
    del weights["lm_head.weight"]
    checkpoint = resolve(write_gguf(tmp_path / "tiny.gguf", weights))
    assert checkpoint.config.tie_embeddings
    assert "head.weight" not in checkpoint.weights


def test_tokenizer_and_template(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="text needs the package tokenizers")
    checkpoint = resolve(write_gguf(tmp_path / "tiny.gguf", foreign_weights()))
    tokenizer = checkpoint.tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode("the moth")
    assert tokenizer.decode(ids) == "the moth"
    assert ids[0] == 29
    pytest.importorskip("jinja2", reason="templates need the package jinja2")
    prompt = tokenizer.chat([{"role": "user", "content": "ab"}])
    assert prompt == "<s>ab"
    assert tokenizer.encode(prompt) == [0, 2, 3]
    assert checkpoint.config.eos == [1]


def test_a_missing_tensor_and_a_foreign_architecture(tmp_path: Path) -> None:
    weights = foreign_weights()
    del weights["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(CheckpointError, match=r"blk\.1\.ffn_up\.weight.*missing"):
        resolve(write_gguf(tmp_path / "tiny.gguf", weights))
    path = write_gguf(tmp_path / "other.gguf", foreign_weights())
    path.write_bytes(path.read_bytes().replace(b"llama", b"lxama"))
    with pytest.raises(CheckpointError, match=r"other\.gguf.*'lxama'.*'llama', 'qwen2'"):
        resolve(path)


def test_truncated_data_is_found_before_anything_is_read(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", foreign_weights())
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(CheckpointError, match="truncated"):
        resolve(path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "magic"),
        (b"GGML" + bytes(60), "no GGUF file"),
        (b"GGUF" + (9).to_bytes(4, "little") + bytes(60), "version"),
        (b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 16 + bytes(60), "counts"),
    ],
)
def test_files_of_another_kind(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=said):
        resolve(path)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return write_gguf(path, foreign_weights()).read_bytes()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cut=st.integers(0, 60), at=st.integers(0, 3200), byte=st.integers(0, 255))
def test_damaged_files_fail_in_one_way_or_not_at_all(
    tmp_path: Path, sample: bytes, cut: int, at: int, byte: int
) -> None:
    path = tmp_path / "tiny.gguf"
    data = bytearray(sample)
    data[at] = byte
    path.write_bytes(data[: len(data) - cut])
    failure = failure_of(path)
    assert failure is None or "tiny.gguf" in failure


def failure_of(path: Path) -> str | None:
    try:
        read_header(path)
        weights = resolve(path).weights
        for name in weights.names():
            weights.numpy(name)
    except CheckpointError as error:
        return str(error)
    return None
