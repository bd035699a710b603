"""docs/mixers.md has a row for every mixer of this project, and its examples are right."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from seqmix.blocks import BlockConfig
from seqmix.registry import contributions

PAGE = Path(__file__).parents[2] / "docs" / "mixers.md"


def rows() -> dict[str, list[str]]:
    """The cells of every row that begins with a name, by that name."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if (name := re.fullmatch(r"`(\w+)`", cells[0])) and len(cells) == 6:
            found[name[1]] = cells[1:]
    return found


def own() -> set[str]:
    return {c.name for c in contributions() if c.kind == "mixers" and c.distribution == "seqmix"}


def test_every_mixer_of_this_project_has_its_row() -> None:
    assert own() - set(rows()) == set(), "describe it in docs/mixers.md"
    assert set(rows()) - own() == set(), "this mixer is gone"
    assert all(all(cells) for cells in rows().values())


def test_the_layers_that_the_example_names() -> None:
    text = PAGE.read_text(encoding="utf-8")
    block = tomllib.loads(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0])["blocks"][0]
    made = BlockConfig.model_validate(block).layers()
    assert [i for i, layer in enumerate(made) if layer[0][0].kind == "attention"] == [2, 6, 10]
