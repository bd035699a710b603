"""Files and folders that are replaced at once; what is left in the middle is refused; locks."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core import tiny

from seqmix import whole_folder as module
from seqmix.errors import CheckpointError, WriteError
from seqmix.lock import LockFile
from seqmix.storage import load_model, read_saved, save_model
from seqmix.whole_file import LEFT_OVER, part_of, write_whole
from seqmix.whole_folder import read_steadily, whole_folder

SEAL = "seal"
SWAPS = [True, False]
"""Whether two folders can change places in one step; else files move in one by one."""


def write(folder: Path, name: str, **options: Any) -> None:
    with whole_folder(folder, SEAL, **options) as aside:
        (aside / SEAL).write_text(name)
        (aside / f"of-{name}").write_text(name)
        (aside / "deep").mkdir()
        (aside / "deep" / "file").write_text(name)


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@pytest.fixture(params=SWAPS, ids=["swapped", "moved"])
def swapped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(module, "_changed_places", lambda one, other: False)
    return bool(request.param)


def test_a_folder_and_another_over_it(tmp_path: Path, swapped: bool) -> None:
    folder = tmp_path / "folder"
    write(folder, "one")
    assert names(folder) == ["deep/file", "of-one", "seal"]
    (folder / "mine").write_text("of the user")
    write(folder, "two", replaces=("of-one",))
    assert names(folder) == ["deep/file", "mine", "of-two", "seal"]
    assert (folder / "deep" / "file").read_text() == "two"
    write(folder, "three", keep=False)
    assert names(folder) == ["deep/file", "of-three", "seal"]
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_plain_folder_changes_places(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for name in ("one", "two"):
        with whole_folder(folder, SEAL) as aside:
            assert aside.parent == tmp_path
            (aside / SEAL).write_text(name)
        folder.chmod(0o750)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    assert (folder / SEAL).read_text() == "two"


@pytest.mark.parametrize("keep", [True, False])
def test_where_one_works_nothing_is_pulled_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    folder = tmp_path / "folder"
    write(folder, "one")
    before = folder.stat().st_ino
    monkeypatch.chdir(folder)
    write(Path(), "two", keep=keep)
    assert Path.cwd() == folder
    assert folder.stat().st_ino == before
    assert (folder / SEAL).read_text() == "two"
    assert ("of-one" in names(folder)) == keep


def test_a_failure_leaves_all_as_it_was(tmp_path: Path, swapped: bool) -> None:
    folder = tmp_path / "folder"
    for before in ([], ["deep/file", "of-one", "seal"]):
        with pytest.raises(ZeroDivisionError), whole_folder(folder, SEAL) as aside:
            (aside / SEAL).write_text(str(1 / 0))
        assert names(folder) == before
        write(folder, "one")


def test_what_was_left_in_the_middle_has_no_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the process had been killed while files move in, one after another."""
    folder = tmp_path / "saved"
    models = [tiny.model([tiny.MLP], seed=seed) for seed in (0, 1)]
    monkeypatch.setattr(module, "_changed_places", lambda one, other: False)
    real = Path.replace
    for moves in range(2):
        save_model(models[0], folder)
        left = [moves]

        def replace(self: Path, target: Path, left: list[int] = left) -> Path:
            if Path(target).parent == folder:
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
            return real(self, target)

        monkeypatch.setattr(Path, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            save_model(models[1], folder)
        monkeypatch.setattr(Path, "replace", real)
        with pytest.raises(CheckpointError, match=r"has no config\.json; expected a saved"):
            load_model(folder)
        save_model(models[1], folder)
        assert torch.equal(load_model(folder).embed.weight, models[1].embed.weight)


def test_reading_while_it_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, "one")
    seen: list[str] = []

    def read() -> str:
        first = (tmp_path / SEAL).read_text()
        if len(seen) < 2:
            write(tmp_path, f"new{len(seen)}", replaces=("of-one",))
        seen.append(first)
        if len(seen) == 1:
            (tmp_path / "of-one").read_text()  # It is gone by now.
        return first + (tmp_path / "deep" / "file").read_text()

    assert read_steadily(tmp_path / SEAL, read) == "new1new1"
    with pytest.raises(FileNotFoundError):
        read_steadily(tmp_path / SEAL, lambda: (tmp_path / "never").read_text())
    with pytest.raises(WriteError, match="is being replaced again and again"):
        read_steadily(tmp_path / SEAL, lambda: write(tmp_path, "x"))


def test_weights_of_two_models_are_not_mixed(tmp_path: Path) -> None:
    save_model(tiny.model(), tmp_path)
    _, weights = read_saved(tmp_path)
    first, second, *_ = weights.names()
    weights.numpy(first)
    save_model(tiny.model(seed=1), tmp_path)
    with pytest.raises(CheckpointError, match=r"replaced since it was opened.*load the model aga"):
        weights.numpy(second)


def test_others_may_read_what_is_saved(tmp_path: Path) -> None:
    model = tiny.model()
    save_model(model, tmp_path / "model")
    expected = stat.S_IMODE((tmp_path / "model" / "config.json").stat().st_mode)
    found = stat.S_IMODE((tmp_path / "model" / "model.safetensors").stat().st_mode)
    assert found == expected
    assert load_model(tmp_path / "model").config == model.config


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "file")
    write_whole(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "elsewhere" / "file").read_text() == "text"
    (tmp_path / "folder").symlink_to(tmp_path / "elsewhere")
    write(tmp_path / "folder", "one")
    assert (tmp_path / "folder").is_symlink()
    assert (tmp_path / "elsewhere" / SEAL).read_text() == "one"


def test_what_is_no_file_is_written_to() -> None:
    write_whole(Path(os.devnull), "text")
    assert not Path(os.devnull).is_file()


def test_what_killed_processes_left_long_ago_goes(tmp_path: Path) -> None:
    (tmp_path / "[a]").mkdir()
    for name in ("[a]", "[b]"):
        for age in (0, 2 * LEFT_OVER):
            left = part_of(tmp_path / name)
            if name == "[a]":
                left.mkdir()
            else:
                left.touch()
            then = time.time() - age
            os.utime(left, (then, then))
    (tmp_path / "[a]").rmdir()
    write(tmp_path / "[a]", "one")
    write_whole(tmp_path / "[b]", "text")
    assert len([p for p in tmp_path.iterdir() if p.name.endswith(".part")]) == 2


def test_long_names(tmp_path: Path) -> None:
    write_whole(tmp_path / ("n" * 250), "text")
    write(tmp_path / ("f" * 250), "one")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_lock(tmp_path: Path) -> None:
    one, other = LockFile(tmp_path / "deep" / "lock"), LockFile(tmp_path / "deep" / "lock")
    assert one.take()
    assert not other.take()
    assert not other.take(0.1)
    one.release(remove=True)
    one.release()
    assert not (tmp_path / "deep" / "lock").exists()
    assert other.take()
    other.release()


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(WriteError, match="lock: cannot be written"):
        LockFile(tmp_path / "lock").take()
    assert (tmp_path / "victim").read_text() == "precious"
