"""What is generated for a model: told by ``explain``, written by ``--save-kernels``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tests.backends.triton_kernels  # noqa: F401  # sets the interpreter up, or skips
from tests.core import tiny

import seqmix
from seqmix.cli import invoke
from seqmix_triton.backend import TritonBackend


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    path.write_text(tiny.config([tiny.ATTENTION, tiny.SWIGLU]).model_dump_json())
    return path


def test_explain_says_what_is_fused_and_writes_it(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kernels"
    arguments = ["explain", str(source), "-b", "triton", "--save-kernels", str(folder), "--json"]
    assert invoke(arguments) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any(note.startswith("fused silu_mul (2x)") for note in notes)
    text = (folder / "fused_silu_mul.py").read_text()
    assert "# silu f32[B, S, 17] at " in text
    compile(text, "fused_silu_mul.py", "exec")


def test_a_backend_without_kernels_refuses(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["explain", str(source), "-b", "torch", "--save-kernels", str(tmp_path)]) == 2
    assert "writes no kernels to save" in capsys.readouterr().err


@pytest.mark.full
def test_a_compilation_reports_and_saves(tmp_path: Path) -> None:
    model = tiny.model([tiny.ATTENTION, tiny.SWIGLU])
    options = {"save_kernels": str(tmp_path)}
    executable = seqmix.compile(model, TritonBackend(), options=options, cache=False)
    assert executable.report.kernels["fused_silu_mul"] == 2
    assert (tmp_path / "fused_silu_mul.py").is_file()
