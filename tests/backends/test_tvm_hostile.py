"""Folders of the tvm backend that claim what is not so; no compiler is needed to refuse them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.target_tvm import make

from seqmix_tvm.compiled_folder import (
    MANIFEST,
    WEIGHTS,
    FolderError,
    check_arrays,
    check_folder,
    read_arrays,
    seal_of,
)

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make(tmp_path)
    return tmp_path


def in_manifest(folder: Path, change: Change) -> None:
    path = folder / MANIFEST
    manifest = json.loads(path.read_text())
    change(manifest)
    manifest["seal"] = seal_of(manifest)
    path.write_text(json.dumps(manifest))


def in_header(path: Path, change: Change) -> None:
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[start:])


def test_what_is_whole_is_taken(folder: Path) -> None:
    assert check_folder(folder)["model"]["name"] == "m"
    assert {name for name, _, _ in read_arrays(folder / WEIGHTS)} == {"w", "b"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["entries"]["forward"].update(stored="w"), "should be a list of names"),
        (lambda m: m["entries"]["forward"].update(stored=[["w"]]), "should be a list of names"),
        (lambda m: m["entries"]["forward"].update(inputs={"x": {"dtype": "f3"}}), "has no type"),
        (lambda m: m["entries"]["forward"].pop("outputs"), "does not describe"),
        (lambda m: m["initial"].update(s={"axes": ["B", 2**40], "fill": 0}), "fresh state 's'"),
        (lambda m: m["initial"].update(s={"axes": [-1], "fill": 0}), "fresh state 's'"),
        (lambda m: m["initial"].update(s={"axes": [1], "fill": "0"}), "is filled with '0'"),
        (lambda m: m.update(tvm=3), "version of TVM"),
        (lambda m: m["files"].update({"a\0b": "0"}), "no file of the folder"),
        (lambda m: m["files"].update({"a" * 5000: "0"}), "cannot be read|found no file"),
        (lambda m: m["files"].update({WEIGHTS: ["0"]}), "expected sha256"),
    ],
)
def test_a_manifest_that_lies(folder: Path, change: Change, message: str) -> None:
    in_manifest(folder, change)
    with pytest.raises(FolderError, match=message):
        check_folder(folder)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"format": ' + "9" * 5000 + "}", " " * (17 << 20)]
)
def test_a_manifest_without_measure(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text)
    with pytest.raises(FolderError, match="no manifest of a compiled model"):
        check_folder(folder)


def test_a_pipe_is_no_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    os.mkfifo(folder / MANIFEST)
    with pytest.raises(FolderError, match="no regular file"):
        check_folder(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h["w"].update(shape=[2**31, 2**31]), "should have"),
        (lambda h: h["w"].update(shape=[2**63, 2]), "no whole numbers"),
        (lambda h: h["w"].update(shape=[2, -3]), "no whole numbers"),
        (lambda h: h["w"].update(shape=[True, 6]), "no whole numbers"),
        (lambda h: h["w"].update(data_offsets=[2**60, 2**60 + 24]), "begins at"),
        (lambda h: h["w"].update(data_offsets=h["b"]["data_offsets"]), "should have 24 bytes"),
        (lambda h: h["w"].update(dtype="F8_E4M3"), "no file of weights"),
        (lambda h: h.pop("w"), "begins at|should have"),
        (lambda h: h.update(w=[]), "no file of weights"),
    ],
)
def test_weights_that_lie(folder: Path, change: Change, message: str) -> None:
    in_header(folder / WEIGHTS, change)
    with pytest.raises(FolderError, match=message):
        check_arrays(folder / WEIGHTS)


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 8, (2**20).to_bytes(8, "little"), b"\2" + bytes(7) + b"[]", bytes(8)]
)
def test_no_weights_at_all(folder: Path, data: bytes) -> None:
    (folder / WEIGHTS).write_bytes(data)
    with pytest.raises(FolderError, match=r"header|no file of weights"):
        next(read_arrays(folder / WEIGHTS))
