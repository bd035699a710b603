"""Import contracts hold, and a planted violation of each is caught."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = ("ir", "core", "plugins", "backends")
VIOLATIONS = {
    "ir imports torch": ("ir/seqmix_ir/planted.py", "import torch"),
    "ir imports core": ("ir/seqmix_ir/planted.py", "import seqmix.errors"),
    "core imports a backend": ("core/seqmix/planted.py", "import seqmix_onnxruntime"),
    "core imports a compiler": ("core/seqmix/planted.py", "import onnxruntime"),
    "a plugin imports a sibling": ("plugins/seqmix_hybrid/planted.py", "import seqmix_rope"),
    "a plugin imports a backend": (
        "plugins/seqmix_hybrid/planted.py",
        "import seqmix_onnxruntime",
    ),
    "a backend imports a plugin": ("backends/seqmix_onnxruntime/planted.py", "import seqmix_rope"),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("importlinter")
    folder = tmp_path_factory.mktemp("contracts")
    for source in SOURCES:
        shutil.copytree(
            ROOT / source, folder / source, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(folder / s) for s in SOURCES)
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_sources_keep_every_contract(copy: Path) -> None:
    result = lint(copy)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_planted_violation_is_caught(copy: Path, name: str) -> None:
    place, line = VIOLATIONS[name]
    planted = copy / place
    planted.write_text(f'"""Planted."""\n\n{line}\n', encoding="utf-8")
    try:
        result = lint(copy)
    finally:
        planted.unlink()
    assert result.returncode == 1, result.stdout
    assert "planted" in result.stdout
