"""Headers of safetensors files that claim what the file does not hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.core import tiny

from seqmix.checkpoint import resolve
from seqmix.errors import CheckpointError
from seqmix.model import Model
from seqmix.safetensors_header import TensorSpan, read_spans
from seqmix.storage import read_weights, save_model


def file_with(path: Path, header: Any, data: bytes = bytes(8)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


def test_what_a_file_holds(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3), "b": torch.zeros(0, 4)}, tmp_path / "x.safetensors")
    spans = read_spans(tmp_path / "x.safetensors")
    assert {span.shape for span in spans.values()} == {(2, 3), (0, 4)}
    assert spans["a"].stop - spans["a"].start == 24
    path = file_with(tmp_path / "y.safetensors", {"a": entry()})
    size = path.stat().st_size
    assert read_spans(path) == {"a": TensorSpan("F32", (2,), size - 8, size)}


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [2**60]},
        {"shape": [2**31, 2**31, 2**31, 0, 2]},
        {"shape": [2**62] * 3},
        {"shape": [1] * 70},
        {"shape": [2, 10**39]},
        {"shape": [-2]},
        {"shape": [True, 2]},
        {"shape": 2},
        {"data_offsets": [0, 2**60]},
        {"data_offsets": [-8, 0]},
        {"data_offsets": [8, 0]},
        {"data_offsets": [8, 16]},
        {"data_offsets": [0]},
        {"dtype": "F8_E4M3", "shape": [8]},
        {"dtype": "F4", "shape": [16]},
        {"dtype": "C64", "shape": [1]},
        {"dtype": ["F32"]},
        {"dtype": "I64", "shape": [1]},
    ],
)
def test_entries_that_lie(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = file_with(tmp_path / "x.safetensors", {"a": entry(**changes)})
    with pytest.raises(CheckpointError, match=r"x\.safetensors: tensor 'a' should have"):
        read_spans(path)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"a": ' + b"1" * 6000 + b"}",
        b'{"a": 1, "a": 1}',
        b"\xff",
        {"a": entry(), "b": entry()},
        {"a": entry(), "b": entry(shape=[1], data_offsets=[4, 8])},
    ],
)
def test_headers_that_are_none(tmp_path: Path, header: Any) -> None:
    with pytest.raises(CheckpointError, match="fetch it again"):
        read_spans(file_with(tmp_path / "x.safetensors", header))


@pytest.mark.parametrize("length", [9, 2**40, 2**63, 2**64 - 1])
def test_headers_longer_than_the_file(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}      ")
    with pytest.raises(CheckpointError, match="header should be"):
        read_spans(path)


def test_types_that_are_no_weights(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, dtype=torch.float8_e4m3fn)}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="found 'F8_E4M3'"):
        read_weights(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("key", "value"), [("vocab_size", 2**30), ("vocab_size", 2**62), ("width", 2**29)]
)
def test_sizes_are_refused_before_memory_is_taken(tmp_path: Path, key: str, value: int) -> None:
    save_model(tiny.model([tiny.MLP]), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(CheckpointError, match=r"weights do not fit|config\.json"):
        Model.from_checkpoint(resolve(tmp_path))


@pytest.mark.parametrize("repeat", [50, 10**9, 2**60])
def test_layers_that_no_file_has(tmp_path: Path, repeat: int) -> None:
    save_model(tiny.model([tiny.MLP]), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["blocks"][0]["repeat"] = repeat
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        resolve(tmp_path)
