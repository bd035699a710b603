"""The page of dependencies says what pyproject.toml asks for, and under which licence it comes."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = {
    "Apache-2.0": "apache",
    "MIT": "mit",
    "ISC": "isc",
    "BSD-3-Clause": "bsd",
    "BSD-2-Clause": "bsd",
    "PSF-2.0": "python software foundation",
    "MPL-2.0": "mpl",
}
"""What a package says of itself in any of the forms in use, in small letters."""


def _wanted() -> dict[str, tuple[str, set[str]]]:
    """Range and extras of every requirement."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {"": project["dependencies"], **project["optional-dependencies"]}
    found: dict[str, tuple[str, set[str]]] = {}
    for extra, requirements in extras.items():
        if extra in ("all", "peers"):
            continue
        for requirement in requirements:
            name, range_ = re.fullmatch(r"([\w.-]+)(?:\[\w+\])?(\S+)", requirement).groups()
            known = found.setdefault(name, (range_, set()))
            assert known[0] == range_, f"{name} has two ranges"
            known[1].update([extra] if extra else [])
    return found


def _rows() -> dict[str, tuple[str, set[str], str]]:
    text = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith(("| ---", "| package"))
    ]
    assert all(len(row) == 5 and row[4] for row in rows)
    return {n: (r, set(filter(None, e.split(", "))), licence) for n, r, e, licence, _ in rows}


def test_every_requirement_has_its_line() -> None:
    found = {name: (range_, extras) for name, (range_, extras, _) in _rows().items()}
    assert found == _wanted()


@pytest.mark.parametrize("name", _wanted())
def test_a_licence_is_what_the_package_says(name: str) -> None:
    licence = _rows()[name][2]
    try:
        says = metadata(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    fields = [says.get("License-Expression"), says.get("License"), *says.get_all("Classifier", [])]
    about = " ".join(filter(None, fields)).lower()
    assert WORDS[licence] in about
