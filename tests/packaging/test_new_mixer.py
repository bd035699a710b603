"""seqmix new mixer: what it writes is a package that passes its own tests, and it loses nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.packaging.own_packages import install, run

from seqmix.cli import invoke
from seqmix.cli.new import write_mixer_package
from seqmix.errors import ConfigError


def test_a_package_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["new", "mixer", "leaky_mixer"]) == 0
    folder = tmp_path / "seqmix-leaky-mixer"
    written = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
    assert written == {
        "README.md",
        "pyproject.toml",
        "seqmix_leaky_mixer/__init__.py",
        "seqmix_leaky_mixer/mixer.py",
        "seqmix_leaky_mixer/py.typed",
        "tests/test_leaky_mixer.py",
    }
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        compile(text, str(path), "exec")
        assert "$" not in text
    assert "class LeakyMixer(seqmix" in (folder / "seqmix_leaky_mixer/mixer.py").read_text("utf-8")
    assert "seqmix check leaky_mixer" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("name", ["", "My", "9lives", "a-b", "_a", "a__b", "a_", "é", "a" * 41])
def test_a_name_that_is_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lower-case letters"):
        write_mixer_package(name, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_taken(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mixer 'attention' already, of seqmix \d"):
        write_mixer_package("attention", tmp_path / "new")
    with pytest.raises(ConfigError, match="package 'seqmix_rope' already"):
        write_mixer_package("rope", tmp_path / "new")


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(ConfigError, match="mine exists"):
        write_mixer_package("leaky", tmp_path / "mine")
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.full
def test_the_package_passes_its_own_tests_as_it_is_written(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the package is built")
    write_mixer_package("leaky", tmp_path / "source")
    shutil.copytree(tmp_path / "source", tmp_path / "copy")
    install([tmp_path / "copy"], tmp_path / "site")
    said = run(tmp_path / "site", "pytest", "-q", "-W", "error", folder=tmp_path / "source")
    assert "1 passed" in said
    assert "leaky" in run(tmp_path / "site", "seqmix", "info", "leaky", "--option", "memory=3")
