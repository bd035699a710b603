"""GGUF files of the other architectures: the same model as from the Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.plugins.checkpoint_samples import foreign_weights, write_folder, write_gguf

from seqmix.checkpoint import resolve
from seqmix.errors import CheckpointError
from seqmix.model import Model
from seqmix_checkpoints.tokenizer import byte_pair_tokenizer

pytest.importorskip("gguf", reason="GGUF files need the package gguf")

# The family in Hugging Face files and the architecture in GGUF files.
SAME = [("qwen2", "qwen2"), ("qwen3", "qwen3"), ("mistral", "llama")]


def written(folder: Path, family: str, architecture: str, **gguf: Any) -> tuple[Path, Path]:
    weights = foreign_weights(family=family)
    whole = write_folder(folder / "folder", weights, model_type=family, architectures=None)
    data = json.loads((whole / "config.json").read_text())
    # GGUF files of Mistral models do not say what window they have.
    (whole / "config.json").write_text(json.dumps({**data, "sliding_window": None}))
    return whole, write_gguf(folder / "tiny.gguf", weights, architecture=architecture, **gguf)


@pytest.mark.parametrize(("family", "architecture"), SAME)
def test_the_same_model_as_from_hugging_face(
    tmp_path: Path, family: str, architecture: str
) -> None:
    expected, found = (resolve(path) for path in written(tmp_path, family, architecture))
    assert found.weights.digest() == expected.weights.digest()
    assert found.config.branches() == expected.config.branches()
    assert found.config.position == expected.config.position
    ids, positions = torch.tensor([[3, 1, 4, 1, 5, 9, 2]]), torch.arange(7).unsqueeze(0)
    with torch.inference_mode():
        logits = [Model.from_checkpoint(c)(ids, positions)[0] for c in (expected, found)]
    assert torch.equal(*logits)


def test_only_llama_files_are_permuted(tmp_path: Path) -> None:
    weights = foreign_weights(family="qwen2")
    name = "steps.0.branches.0.mixer.query.weight"
    plain = weights["model.layers.0.self_attn.q_proj.weight"].numpy()
    found = resolve(write_gguf(tmp_path / "x.gguf", weights, architecture="qwen2"))
    assert np.array_equal(found.weights.numpy(name), plain)


def test_biases_of_llama_files_are_permuted_too(tmp_path: Path) -> None:
    weights = foreign_weights(family="qwen2")
    found = resolve(write_gguf(tmp_path / "x.gguf", weights))
    for part in ("query", "key", "value"):
        theirs = weights[f"model.layers.1.self_attn.{part[0]}_proj.bias"].numpy()
        ours = found.weights.numpy(f"steps.2.branches.0.mixer.{part}.bias")
        assert np.array_equal(ours, theirs)


def test_yarn_of_another_architecture(tmp_path: Path) -> None:
    weights = foreign_weights(family="qwen3")
    path = write_gguf(tmp_path / "x.gguf", weights, yarn=True, architecture="qwen3")
    position = resolve(path).config.position
    assert position is not None
    assert position.kind == "yarn"
    assert position.options["original_context_length"] == 64


@pytest.mark.parametrize("architecture", ["gptneox", "qwen2moe", "qwen3moe", "gemma3", "mistral3"])
def test_other_architectures_are_refused_by_name(tmp_path: Path, architecture: str) -> None:
    path = write_gguf(tmp_path / "x.gguf", foreign_weights(), architecture=architecture)
    with pytest.raises(CheckpointError, match=f"architecture '{architecture}' is not supported"):
        resolve(path)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("qwen3.attention.sliding_window", 16, "sliding window"),
        ("qwen3.expert_count", 4, "mixtures of experts"),
        ("qwen3.attention.value_length", 4, "should be the head size 8, found 4"),
        ("qwen3.rope.dimension_count", 4, "should be the head size 8, found 4"),
    ],
)
def test_features_are_refused_by_name(tmp_path: Path, key: str, value: float, said: str) -> None:
    weights, path = foreign_weights(family="qwen3"), tmp_path / "x.gguf"
    if key.endswith("value_length"):
        write_gguf(path, weights, architecture="qwen3")
        old = key.encode() + (4).to_bytes(4, "little")
        data = path.read_bytes()
        assert old + (8).to_bytes(4, "little") in data
        path.write_bytes(
            data.replace(old + (8).to_bytes(4, "little"), old + (4).to_bytes(4, "little"))
        )
    else:
        write_gguf(path, weights, architecture="qwen3", metadata={key: value})
    with pytest.raises(CheckpointError, match=said):
        resolve(path)


def test_a_qwen3_file_without_its_norms(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_q_norm\.weight' \[8\] is missing"):
        resolve(write_gguf(tmp_path / "x.gguf", foreign_weights(), architecture="qwen3"))


TEXTS = ["it's 1234 moths", "  two\n\n lines\t!!", "e\u0301te\u0301 caf\u00e9", "IT'LL x=1;", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_qwen_are_cut_as_transformers_cuts_them(text: str) -> None:
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    library = pytest.importorskip("tokenizers", reason="text needs the package tokenizers")
    # Every byte is a token, and so are merges that only some cuts allow.
    letters = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    merges = [("1", "2"), ("'", "s"), ("!", "!"), ("Ċ", "Ċ"), ("Ġ", "Ġ"), ("'", "L"), ("Ã", "©")]
    tokens = [*letters, *("".join(pair) for pair in merges)]
    theirs = transformers.Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(tokens)}, merges=merges
    )
    ours = byte_pair_tokenizer(tokens, [" ".join(pair) for pair in merges], "qwen2")
    assert ours.encode(text).ids == theirs.encode(text, add_special_tokens=False)
