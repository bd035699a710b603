"""Files that lie about more than sizes, and the words of a model: streams, templates, merges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.plugins.checkpoint_samples import foreign_weights, write_folder, write_gguf

from seqmix.checkpoint import resolve
from seqmix.errors import CheckpointError
from seqmix_checkpoints.chat import render_chat
from seqmix_checkpoints.tokenizer import IncrementalDecoder, TextTokenizer, byte_pair_tokenizer

MESSAGES = [{"role": "user", "content": "<hé>"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b'{"hidden_size": ' + b"1" * 5000 + b"}",
    ],
    ids=["empty", "not text", "deep list", "deep object", "long number"],
)
@pytest.mark.parametrize(
    "file", ["config.json", "generation_config.json", "tokenizer_config.json", "index"]
)
def test_unreadable_json(tmp_path: Path, file: str, data: bytes) -> None:
    folder = write_folder(tmp_path)
    (folder / "tokenizer.json").write_text("{}")
    name = "model.safetensors.index.json" if file == "index" else file
    (folder / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=r"\.json|no checkpoint"):
        resolve(folder)


@pytest.mark.parametrize("stem", ["a\0", "x" * 5000, "\ud800", "loop", ""])
def test_shards_with_names_that_no_file_has(tmp_path: Path, stem: str) -> None:
    folder = write_folder(tmp_path)
    (folder / "loop.safetensors").symlink_to(folder / "loop.safetensors")
    places = dict.fromkeys(foreign_weights(), f"{stem}.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(CheckpointError, match="safetensors"):
        resolve(folder)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"rms_norm_eps": "8"}, "rms_norm_eps should be a number"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps should be a number"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings should be true or false"),
        ({"attention_bias": 1}, "attention_bias should be true or false"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": "8"}}, "beta_fast"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2}, "rope_parameters": {"type": "default"}},
            "remove one",
        ),
    ],
)
def test_settings_of_the_wrong_kind(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError) as error:
        resolve(write_folder(tmp_path, **config))
    assert said in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_an_original_length_beside_the_rope_settings_wins(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}
    folder = write_folder(tmp_path, rope_scaling=rope, original_max_position_embeddings=32)
    position = resolve(folder).config.position
    assert position is not None
    assert position.options["original_context_length"] == 32


@pytest.mark.parametrize("key", ["llama.rope.scaling.factor", "llama.rope.scale_linear"])
def test_a_factor_without_a_type_is_linear_and_never_ignored(tmp_path: Path, key: str) -> None:
    path = write_gguf(tmp_path / "x.gguf", foreign_weights(), metadata={key: 4.0})
    position = resolve(path).config.position
    assert position is not None
    assert (position.kind, position.options["factor"]) == ("linear", 4.0)
    path = write_gguf(tmp_path / "y.gguf", foreign_weights(), metadata={key: 1.0})
    position = resolve(path).config.position
    assert position is not None
    assert position.kind == "rope"


def test_a_part_of_a_model_says_how_to_join_it(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="one of 3 parts"):
        resolve(write_gguf(tmp_path / "x.gguf", foreign_weights(), metadata={"split.count": 3}))


def test_llama3_texts_begin_with_bos_and_others_do_not(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="text needs the package tokenizers")
    for pre, expected in (("llama-bpe", [0, 2, 3]), ("gpt-2", [2, 3])):
        tokenizer = resolve(write_gguf(tmp_path / "x.gguf", foreign_weights(), pre=pre)).tokenizer
        assert tokenizer is not None
        assert tokenizer.encode("ab") == expected


def byte_fallback(ids: Sequence[int]) -> str:
    """Like SentencePiece decoders: all bytes of a run are replaced when the run is no text."""
    try:
        return bytes(ids).decode()
    except UnicodeDecodeError:
        return "\ufffd" * len(ids)


def test_characters_of_several_ids_stay_together() -> None:
    text = "€€😀€"
    decoder = IncrementalDecoder(byte_fallback)
    pieces = [decoder.push(byte) for byte in text.encode()]
    assert "".join(pieces) + decoder.finish() == text
    assert [piece for piece in pieces if piece] == ["€", "€", "😀", "€"]


def test_a_special_token_does_not_swallow_the_space_behind_it() -> None:
    words = {0: "", 1: " one", 2: " two"}

    def decode(ids: Sequence[int]) -> str:
        return "".join(words[i] for i in ids).removeprefix(" ")

    decoder = IncrementalDecoder(decode)
    assert [decoder.push(i) for i in (1, 0, 2, 0, 0, 1)] == ["one", "", " two", "", "", " one"]
    assert decoder.finish() == ""


@pytest.mark.parametrize(
    ("tokens", "merges", "bos", "said"),
    [
        (["a", "b"], ["a b"], None, "'a b'"),
        (["a", "b", "ab"], ["ab"], None, "'ab'"),
        (["a", "b", "ab"], [5], None, "'5'"),
        (["a", "aa"], [" aa"], None, "' aa'"),
        (["a"], [], "z", "'z'"),
    ],
)
def test_merges_that_do_not_fit(
    tokens: list[str], merges: list[Any], bos: str | None, said: str
) -> None:
    pytest.importorskip("tokenizers", reason="text needs the package tokenizers")
    with pytest.raises(CheckpointError, match=said):
        byte_pair_tokenizer(tokens, merges, "gpt-2", [], bos)


@pytest.mark.parametrize("bos", ["$A", "<b o s>", "x:y", "<s>"])
def test_a_first_token_of_any_spelling(bos: str) -> None:
    pytest.importorskip("tokenizers", reason="text needs the package tokenizers")
    inner = byte_pair_tokenizer(["a", "b", bos], [], "llama-bpe", [bos], bos)
    assert inner.encode("ab").ids == [2, 0, 1]
    tokenizer = TextTokenizer(lambda: inner, None, {"bos_token": bos})
    assert tokenizer.encode(bos + "ab") == [2, 0, 1]


def test_whole_tokens_are_text_and_special_ones_are_not() -> None:
    pytest.importorskip("tokenizers", reason="text needs the package tokenizers")
    inner = byte_pair_tokenizer(["a", "b", "<s>", "ba"], [], "gpt-2", ["<s>"], whole=["ba"])
    ids = inner.encode("a<s>bab").ids
    assert ids == [0, 2, 3, 1]
    assert inner.decode(ids, skip_special_tokens=True) == "abab"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages | tojson }}", json.dumps(MESSAGES, ensure_ascii=False)),
        ("{% for m in messages %}{% break %}{% endfor %}end", "end"),
        ("{{ bos_token }}{{ strftime_now('%%') }}", "<s>%"),
        ("{{ tools is defined }}{{ add_generation_prompt }}", "FalseTrue"),
    ],
)
def test_templates_find_what_transformers_gives_them(template: str, expected: str) -> None:
    pytest.importorskip("jinja2", reason="templates need the package jinja2")
    assert render_chat(template, MESSAGES, {"bos_token": "<s>"}) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x'.encode('bogus') }}",
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}",
        "{% include 'x' %}",
        "{{ range(999999999) }}",
        "{% for",
        "{{ raise_exception('no') }}",
    ],
)
def test_templates_that_fail_or_reach_out(template: str) -> None:
    pytest.importorskip("jinja2", reason="templates need the package jinja2")
    with pytest.raises(CheckpointError, match="refuses these messages"):
        render_chat(template, MESSAGES, {})


def test_a_template_file_that_is_no_text(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_bytes(b"\xff\xff")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja"):
        resolve(folder)
