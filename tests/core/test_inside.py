"""Files of a folder: links may lead to the blobs of its download cache, and nowhere else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.core import tiny

from seqmix.checkpoint import resolve
from seqmix.errors import CheckpointError
from seqmix.inside import file_inside
from seqmix.reading import UnreadableError
from seqmix.storage import save_model


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/hosts", "a\0b", "x" * 5000])
def test_names_that_are_no_plain_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnreadableError, match=r"leads out|cannot be read"):
        file_inside(tmp_path, name)


def test_links(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside").write_text("x")
    (folder / "held").write_text("x")
    for link, to in {"a": "held", "b": "../outside", "c": "c", "d": "missing"}.items():
        (folder / link).symlink_to(to)
    assert file_inside(folder, "a").read_text() == "x"
    assert file_inside(folder, "d") == folder / "d"
    for link in "bc":
        with pytest.raises(UnreadableError, match=r"leads out of its folder|cannot be read"):
            file_inside(folder, link)


@pytest.mark.parametrize("below", ["", "part"])
def test_a_download_cache(tmp_path: Path, below: str) -> None:
    cache = tmp_path / "models--a--b"
    folder = cache / "snapshots" / "0f" / below
    (cache / "blobs").mkdir(parents=True)
    folder.mkdir(parents=True)
    (cache / "blobs" / "1a").write_text("x")
    (folder / "config.json").symlink_to(cache / "blobs" / "1a")
    assert file_inside(folder, "config.json").read_text() == "x"
    (folder / "other.json").symlink_to(tmp_path / "refs")
    with pytest.raises(UnreadableError, match="leads out"):
        file_inside(folder, "other.json")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_saved_models_with_links(tmp_path: Path, name: str) -> None:
    save_model(tiny.model([tiny.MLP]), tmp_path / "m")
    shutil.move(tmp_path / "m" / name, tmp_path / "moved")
    (tmp_path / "m" / name).symlink_to(tmp_path / "moved")
    with pytest.raises(CheckpointError, match=rf"{name}.* leads out of its folder, to .*moved"):
        resolve(tmp_path / "m")
