"""No room on the disk: an error of ours that names the file, and what was there is as it was."""

from __future__ import annotations

import errno
import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from tests.core import tiny

from seqmix import cache
from seqmix.bench.result import Result, Settings, write_result
from seqmix.cli import invoke
from seqmix.compile import compile, load
from seqmix.errors import SeqmixError, WriteError
from seqmix.storage import load_model, save_model
from seqmix.training.metrics import COLUMNS, Metrics
from seqmix.training.sweeps.table import write_csv
from seqmix.whole_file import whole_file, write_whole

FULL = r"cannot be written: .*(File too large|os error 27)"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQMIX_CACHE_DIR", str(tmp_path / "cache"))
    # So that what is left behind in the system's folder would be seen.
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "cache"


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file can grow beyond a size, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def nothing_changes(folder: Path, write: Callable[[], object], size: int) -> str:
    """What a write says that fails; all files are then as they were before."""
    before = content(folder)
    with full_disk(size), pytest.raises(WriteError, match=FULL) as caught:
        write()
    assert content(folder) == before
    assert ".part" not in str(caught.value).partition(":")[0]
    return str(caught.value)


@pytest.mark.parametrize("size", [0, 1, 5000])
def test_a_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file.txt"
    said = nothing_changes(tmp_path, lambda: write_whole(path, "x" * 10_000), size)
    assert said.startswith(f"{path}: ")
    write_whole(path, "old")
    nothing_changes(tmp_path, lambda: write_whole(path, "x" * 10_000), size)
    assert path.read_text() == "old"


def test_a_disk_that_tells_it_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "file", "old")

    def fail(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(WriteError, match=r"file: cannot be written: .*No space left") as caught:
        write_whole(tmp_path / "file", "new")
    assert caught.value.errno == errno.ENOSPC
    assert content(tmp_path) == {"file": b"old"}


def test_an_error_of_the_writer_is_passed_on(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", "old")
    with suppress(ZeroDivisionError), whole_file(tmp_path / "file") as file:
        file.write(b"new")
        _ = 1 / 0
    assert content(tmp_path) == {"file": b"old"}


@pytest.mark.parametrize("size", [0, 2000])
def test_a_model(tmp_path: Path, size: int) -> None:
    model, folder = tiny.model(), tmp_path / "model"
    said = nothing_changes(tmp_path, lambda: save_model(model, folder), size)
    assert str(folder) in said
    assert not folder.exists()
    save_model(tiny.model(seed=7), folder)
    nothing_changes(tmp_path, lambda: save_model(model, folder), size)
    found = load_model(folder)
    assert torch.equal(found.embed.weight, tiny.model(seed=7).embed.weight)


def executable_keeps(tmp_path: Path, backend: str, size: int) -> None:
    model, folder = tiny.model([tiny.ATTENTION]), tmp_path / "saved"
    executable = compile(model, backend, cache=False)
    said = nothing_changes(tmp_path, lambda: executable.save(folder), size)
    assert str(folder) in said
    assert not folder.exists()
    executable.save(folder)
    nothing_changes(tmp_path, lambda: executable.save(folder), size)
    ids, positions = tiny.tokens(1, 3)
    assert torch.equal(load(folder)(ids, positions)[0], executable(ids, positions)[0])


@pytest.mark.parametrize("size", [0, 3000])
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_executables_of_the_core(tmp_path: Path, backend: str, size: int) -> None:
    executable_keeps(tmp_path, backend, size)


@pytest.mark.parametrize("size", [0, pytest.param(3000, marks=pytest.mark.full)])
def test_executables_of_onnxruntime(tmp_path: Path, size: int) -> None:
    pytest.importorskip("onnxruntime")
    executable_keeps(tmp_path, "onnxruntime", size)


@pytest.mark.full
@pytest.mark.parametrize("size", [0, 3000, 20_000])
def test_executables_of_tvm(tmp_path: Path, size: int) -> None:
    pytest.importorskip("tvm")
    executable_keeps(tmp_path, "tvm", size)


@pytest.mark.parametrize("backend", ["onnxruntime", pytest.param("tvm", marks=pytest.mark.full)])
@pytest.mark.parametrize("size", [0, 2000])
def test_compiling(tmp_path: Path, backend: str, size: int) -> None:
    pytest.importorskip(backend)
    model = tiny.model([tiny.ATTENTION])
    with full_disk(size), pytest.raises(SeqmixError, match=r"cannot be written"):
        compile(model, backend, cache=False)
    assert content(tmp_path) == {}


def test_a_cache_without_room_is_no_error(home: Path) -> None:
    pytest.importorskip("onnxruntime")

    # Room for the file that the backend makes for itself, in pieces; and none for an entry.
    def fail(folder: Path) -> None:
        with full_disk(1000), whole_file(folder / "weights") as file:
            file.write(b"x" * 5000)

    cache.store("k", fail)
    assert cache.fetch("k") is None
    assert content(home) == {}
    with full_disk(10):
        assert cache.remember("auto", "text", lambda: "value") == "value"
    assert content(home) == {}


def test_an_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = [tmp_path / "one", tmp_path / "other"]
    for seed, place in enumerate(models):
        save_model(tiny.model([tiny.ATTENTION], seed=seed), place)
    out, given = tmp_path / "out", ["--backend", "torch", "--force"]
    assert invoke(["export", str(models[0]), str(out), *given]) == 0
    before = content(out)
    capsys.readouterr()
    with full_disk(2000):
        assert invoke(["export", str(models[1]), str(out), *given]) == 2
    said = capsys.readouterr().err
    assert str(out) in said
    assert "cannot be written" in said
    assert content(out) == before
    assert not list(tmp_path.glob(".*"))


def test_tables(tmp_path: Path) -> None:
    rows = [{"name": "a" * 3000}]
    nothing_changes(tmp_path, lambda: write_csv(tmp_path / "t.csv", ("name",), rows), 1000)
    result = Result(Settings("m" * 3000, None, [], [], 1, 1, 1, 0), {}, 1)
    nothing_changes(tmp_path, lambda: write_result(result, tmp_path / "r.json"), 1000)
    write_csv(tmp_path / "t.csv", ("name",), [{"name": "old"}])
    nothing_changes(tmp_path, lambda: write_csv(tmp_path / "t.csv", ("name",), rows), 1000)


def test_figures_of_a_training(tmp_path: Path) -> None:
    row = {**dict.fromkeys(COLUMNS), "step": 1, "loss": 0.5}
    metrics = Metrics(tmp_path / "metrics.csv", [row])
    before = (tmp_path / "metrics.csv").stat().st_size
    with full_disk(before + 3), pytest.raises(WriteError, match=FULL):
        metrics.add(row)
    whole = Metrics(tmp_path / "metrics.csv", [row])
    whole.add(row)
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 3


def test_a_tokenizer(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers")
    from seqmix_checkpoints.tokenizer import TextTokenizer

    words = {f"w{number}": number for number in range(100)}
    model = library.models.WordLevel(words, unk_token="w0")
    tokenizer = TextTokenizer(lambda: library.Tokenizer(model), None, {})
    with full_disk(100), pytest.raises(SeqmixError, match=r"tokenizer.json: cannot be written"):
        tokenizer.save(tmp_path)
    assert content(tmp_path) == {}
