"""Every hook, entry-point group, environment variable and command-line option is documented."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

import pytest
from tests.packaging import cli_reference

from seqmix import hooks, registry

ROOT = Path(__file__).parents[2]
PLUGINS = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
PAGES = "".join(
    path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]
)
SOURCES = [
    path for root in ("ir", "core", "plugins", "backends") for path in (ROOT / root).rglob("*.py")
]


def test_the_commands_stand_in_their_page_as_they_are() -> None:
    written = cli_reference.PAGE.read_text(encoding="utf-8")
    assert written == cli_reference.page(), "run: python -m tests.packaging.cli_reference"


def test_every_command_and_option_is_seen() -> None:
    """The page is made from the commands; this is that the making leaves out none."""
    found = dict(cli_reference.commands())
    assert {"seqmix run", "seqmix new mixer", "seqmix eval perplexity"} <= set(found)
    sections = re.split(r"\n#+ ", cli_reference.PAGE.read_text(encoding="utf-8"))
    for path, command in found.items():
        section = next(part for part in sections if re.match(rf"`{path}( [A-Z][^ ]*)*`", part))
        for parameter in command.params:
            for name in cli_reference.option_names(parameter):
                assert f"`{name}`".replace("|", "\\|") in section, f"{path} {name}"


def test_every_hook() -> None:
    known = [name for name in vars(hooks.Specs) if name.startswith("seqmix_")]
    assert len(known) >= 3
    for name in known:
        assert f"`{name}(" in PLUGINS, f"describe the hook {name} in docs/plugins.md"


def test_every_entry_point_group() -> None:
    used = {point.group for point in distribution("seqmix").entry_points} - {"console_scripts"}
    groups = {f"seqmix.{kind}" for kind in registry.KINDS} | {"seqmix.hooks"} | used
    for group in groups:
        assert f"| `{group}` |" in PLUGINS, f"describe the group {group} in docs/plugins.md"


def test_every_environment_variable() -> None:
    found = {
        name
        for path in SOURCES
        for name in re.findall(r"\bSEQMIX_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8"))
    }
    assert {"SEQMIX_CACHE_DIR", "SEQMIX_BLOCK_PLUGINS"} <= found
    for name in found:
        assert f"| `{name}` |" in PAGES, f"describe the variable {name} in docs/cli.md"
    told = set(re.findall(r"\| `(SEQMIX_\w+)` \|", PAGES))
    assert told - found == set(), "these variables are gone"


EXCERPTS = re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", PLUGINS, re.DOTALL)


@pytest.mark.parametrize(("file", "text"), EXCERPTS, ids=[file for file, _ in EXCERPTS])
def test_what_the_walk_shows_stands_in_the_package(file: str, text: str) -> None:
    source = (ROOT / "examples" / "third_party_mixer" / file).read_text(encoding="utf-8")
    assert text.strip("\n") in source, f"docs/plugins.md shows another {file}"


def test_the_walk_shows_every_part() -> None:
    assert len({file for file, _ in EXCERPTS}) >= 7
