"""Code and commands of the README and of the documents run as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from seqmix import registry
from seqmix.cli.app import app

ROOT = Path(__file__).parents[2]
MODEL = """
import seqmix
model = seqmix.Model(seqmix.ModelConfig(
    vocab_size=16, width=16, context_length=64, head_dim=8, position={"kind": "rope"},
    blocks=[{"repeat": 1, "steps": [{"kind": "attention", "heads": 2, "head_dim": 8}]}],
))
"""
GIVEN = {
    "backends.md": f'__import__("pytest").importorskip("tvm")\n{MODEL}',
    "positions.md": MODEL,
    "training.md": """
from seqmix.training.stored import Training
def training_at(rate):
    return Training.model_validate({
        "model": {
            "vocab_size": 32, "width": 8, "context_length": 16,
            "blocks": [{"steps": [{"kind": "base_conv", "taps": 3}]}],
        },
        "task": {
            "kind": "mqar", "vocab_size": 32, "length": 16, "pairs": 2,
            "train_rows": 64, "test_rows": 32,
        },
        "training": {"steps": 2, "rate": rate},
    })
""",
}
"""What a document speaks of before its code: names that the reader has already."""

SLOW = ("README.md", "backends.md", "index.md", "training.md")


def documents() -> list[Any]:
    """Every document that has code of its own."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [
        pytest.param(page, id=page.name, marks=[pytest.mark.full] if page.name in SLOW else [])
        for page in pages
        if blocks(page)
    ]


def blocks(page: Path) -> list[str]:
    """The Python of a document, but for what it quotes from a file, which it names first."""
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    return [block for block in found if not re.match(r"# \S+\.\w+\n", block)]


def commands() -> list[Any]:
    """Every line of a document's code that begins with ``seqmix``, its remark left out."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    lines = [
        pytest.param(line.split("  #")[0].split(" > ")[0], id=f"{page.name}-{line[:60]}")
        for page in pages
        if page.name != "cli.md"
        for code in re.findall(r"^```\w*\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
        for line in re.findall(r"^(?:[A-Z_]+=\S+ )?(seqmix .*)$", code, re.M)
    ]
    assert len(lines) > 20
    return lines


@pytest.mark.parametrize("page", documents())
def test_code(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEQMIX_CACHE_DIR", str(tmp_path / "cache"))
    names: dict[str, Any] = {"__name__": page.stem}
    for code in (GIVEN.get(page.name, ""), *blocks(page)):
        exec(compile(code, page.name, "exec"), names)


@pytest.mark.parametrize("line", commands())
def test_command(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    command: Any = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    arguments, context = shlex.split(line)[1:], command.context_class(command)
    while isinstance(command, TyperGroup) and arguments and arguments[0] != "--help":
        name, found, arguments = command.resolve_command(context, arguments)
        assert found is not None, name
        command, context = found, found.context_class(found, parent=context)
    if "--help" not in arguments:
        command.make_context("seqmix", arguments)


@pytest.mark.parametrize("kind", ["mixers", "positions"])
def test_every_class_has_its_place_in_the_api_pages(kind: str) -> None:
    page = (ROOT / "docs" / "api" / f"{kind}.md").read_text(encoding="utf-8")
    own = [c for c in registry.contributions() if c.kind == kind and c.distribution == "seqmix"]
    assert own
    for contribution in own:
        assert f"::: {contribution.value.replace(':', '.')}\n" in page, contribution.name
