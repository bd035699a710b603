"""The commands of seqmix with their options as Markdown.

``python -m tests.packaging.cli_reference`` rewrites docs/cli.md from its marker on; a test fails
when that was forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from seqmix import registry
from seqmix.cli import app

__all__ = ["PAGE", "commands", "option_names", "page"]

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
PIPE = "\\|"
_MARKER = "<!-- What follows is written by: python -m tests.packaging.cli_reference -->\n"


def page() -> str:
    """The whole of docs/cli.md: what is written by hand, and the commands."""
    by_hand, marker, _ = PAGE.read_text(encoding="utf-8").partition(_MARKER)
    if not marker:
        raise ValueError(f"{PAGE} has lost its line {_MARKER!r}")
    return by_hand + marker + "".join(_section(*found) for found in commands())


def commands() -> Iterator[tuple[str, Any]]:
    """Path and command of everything that can be called and comes with seqmix."""
    yield from _below("seqmix", get_command(app))


def option_names(parameter: Any) -> list[str]:
    """How an option or an argument is written on the command line."""
    if parameter.param_type_name == "argument":
        return [parameter.metavar or str(parameter.name).upper()]
    return [*parameter.opts, *parameter.secondary_opts]


def _below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    if not hasattr(command, "list_commands"):
        return
    context = command.context_class(command, info_name=path)
    for name in command.list_commands(context):
        if command.name != "eval" or _comes_with_seqmix(name):
            yield from _below(f"{path} {name}", command.get_command(context, name))


def _comes_with_seqmix(evaluation: str) -> bool:
    return any(c.distribution == "seqmix" for c in registry.providers("evaluations", evaluation))


def _section(path: str, command: Any) -> str:
    shown = [p for p in command.params if not getattr(p, "hidden", False)]
    level = "#" * (len(path.split()) + 1)
    arguments = "".join(f" {option_names(p)[0]}" for p in shown if p.param_type_name == "argument")
    text = f"\n{level} `{path}{arguments}`\n\n{_help(command)}\n"
    rows = [row for p in shown if (row := _row(p))]
    if not rows:
        return text
    return f"{text}\n| option | default | |\n| --- | --- | --- |\n" + "".join(rows)


def _help(command: Any) -> str:
    """The help, with the line breaks of its source undone."""
    paragraphs = (command.help or "").strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _row(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in option_names(parameter))
    default, cells = _default(parameter), [names]
    cells.append(f"`{default}`" if default else "")
    cells.append(" ".join((getattr(parameter, "help", None) or "").split()))
    return f"| {' | '.join(cell.replace('|', PIPE) for cell in cells)} |\n"


def _default(parameter: Any) -> str:
    """What holds where the option is not given, if that says something."""
    default = parameter.default
    if isinstance(default, bool):
        sides = parameter.secondary_opts if not default else parameter.opts
        return str(sides[0]) if parameter.secondary_opts else ""
    known = default is not None and not callable(default) and "Sentinel" not in repr(default)
    return str(default) if known else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
