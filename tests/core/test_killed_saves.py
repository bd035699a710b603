"""Killed at any moment of a save: what can be read then is the whole of one of the two."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from tests.core import saving, tiny
from tests.core.killing import Absent, kill_again_and_again

from seqmix import cache, cache_room
from seqmix.bench.result import read_result
from seqmix.compile import compile, load
from seqmix.storage import is_saved, load_model, save_model

full = pytest.mark.full
often = pytest.mark.parametrize("kills", [pytest.param(20, marks=full)])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQMIX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SEQMIX_CACHE_LIMIT", raising=False)
    return tmp_path / "cache"


def nothing_left(folder: Path, kills: int) -> None:
    """What a killed process was writing is all that may lie about, once for each."""
    assert len(list(folder.parent.glob(f".{folder.name}.*.part"))) <= kills


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=full)])
def test_models(tmp_path: Path, kills: int) -> None:
    models = [tiny.model(seed=seed).state_dict() for seed in (0, 1)]

    def which() -> int:
        folder = tmp_path / "model"
        if not folder.exists():
            raise Absent
        assert is_saved(folder)
        found = load_model(folder).state_dict()
        same = [all(torch.equal(found[n], one[n]) for n in one) for one in models]
        return same.index(True)

    found = kill_again_and_again(kills, saving.save_models, (tmp_path / "model",), which, seed=1)
    assert found
    nothing_left(tmp_path / "model", kills)


def logits_of(folder: Path) -> torch.Tensor:
    return load(folder)(*tiny.tokens(1, 4))[0]


def killed_executables(tmp_path: Path, backend: str, kills: int) -> None:
    made = [tmp_path / "one", tmp_path / "other"]
    for seed, place in enumerate(made):
        compile(tiny.model([tiny.ATTENTION], seed=seed), backend, cache=False).save(place)
    expected = [logits_of(place) for place in made]

    def which() -> int:
        if not (tmp_path / "out").exists():
            raise Absent
        found = logits_of(tmp_path / "out")
        return [torch.equal(found, one) for one in expected].index(True)

    arguments = (tmp_path / "out", made)
    found = kill_again_and_again(kills, saving.save_executables, arguments, which, seed=2)
    assert len(found) > kills // 2
    nothing_left(tmp_path / "out", kills)


@often
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_executables_of_the_core(tmp_path: Path, backend: str, kills: int) -> None:
    killed_executables(tmp_path, backend, kills)


@often
def test_executables_of_onnxruntime(tmp_path: Path, kills: int) -> None:
    pytest.importorskip("onnxruntime")
    killed_executables(tmp_path, "onnxruntime", kills)


@often
def test_executables_of_tvm(tmp_path: Path, kills: int) -> None:
    pytest.importorskip("tvm")
    killed_executables(tmp_path, "tvm", kills)


@often
@pytest.mark.parametrize("options", [[], ["--weights", "int8"]])
def test_exports_of_the_command_line(
    tmp_path: Path, kills: int, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    from seqmix.cli import invoke

    models = [tmp_path / "one", tmp_path / "other"]
    expected = []
    for seed, place in enumerate(models):
        save_model(tiny.model([tiny.ATTENTION], seed=seed), place)
        out = tmp_path / f"export-{seed}"
        assert invoke(["export", str(place), str(out), *options]) == 0, capsys.readouterr().err
        expected.append(logits_of(out))

    def which() -> int:
        if not (tmp_path / "out").exists():
            raise Absent
        assert (tmp_path / "out" / "genai_config.json").is_file()
        found = logits_of(tmp_path / "out")
        return [torch.equal(found, one) for one in expected].index(True)

    arguments = (tmp_path / "out", models, options)
    found = kill_again_and_again(kills, saving.export_models, arguments, which, seed=3)
    assert len(found) > kills // 2
    nothing_left(tmp_path / "out", kills)


@often
def test_entries_of_the_cache(home: Path, kills: int) -> None:
    home.mkdir()

    def whole() -> int:
        folders = [f for f in (home / "compiled").glob("*") if not f.name.startswith(".")]
        for folder in folders:
            found = cache.fetch(folder.name)
            assert found is not None, f"{folder} is damaged"
            for place in ("weights", "deep/more"):
                assert (found / place).read_text() == folder.name * 20_000
            cache_room.release(folder)
        if not folders:
            raise Absent
        return len(folders)

    found = kill_again_and_again(kills, saving.store_entries, (home,), whole, seed=4)
    assert len(found) > kills // 2


@often
def test_choices_and_measurements(home: Path, kills: int) -> None:
    home.mkdir()

    def known() -> list[str]:
        found = []
        for kind in ("auto", "triton-tuning"):
            path = home / kind / cache.key_of("what")
            if not path.exists():
                found.append("")
                continue
            value, _, check = path.read_text(encoding="utf-8").partition("\n")
            assert check == cache.key_of(value)
            assert value in ("a" * 50_000, "b" * 50_000)
            found.append(value[0])
        return found

    found = kill_again_and_again(kills, saving.remember_values, (home,), known, seed=5)
    assert any(value for pair in found for value in pair)


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=full)])
def test_tables(tmp_path: Path, kills: int) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    tables = [[r["name"] for r in rows] for rows in saving.RECORDS]

    def which() -> list[int]:
        if not (folder / "result.json").exists():
            raise Absent
        with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
            names = [row["name"] for row in csv.DictReader(file)]
        json.loads((folder / "result.json").read_text(encoding="utf-8"))
        rows = read_result(folder / "result.json").cases[0].rows
        starts = [table[:500] for table in tables]
        return [tables.index(names), starts.index([row.contestant for row in rows])]

    found = kill_again_and_again(kills, saving.write_tables, (folder,), which, seed=6)
    assert found
    assert len(list(folder.glob(".*.part"))) <= kills
