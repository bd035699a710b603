"""``seqmix eval NAME``: every evaluation that is installed is a command of its own.

An evaluation is a function with the annotations of typer; its docstring is the help. The names come
from the metadata of the installed distributions, so that listing them imports none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from seqmix import registry
from seqmix.errors import PluginError

__all__ = ["HELP_OPTIONS", "Evaluations"]

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


class Evaluations(TyperGroup):
    """The group of commands ``seqmix eval``."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names that are installed."""
        return registry.names("evaluations")

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; PluginError for one that is unknown, broken or ambiguous."""
        return _command(cmd_name, registry.get("evaluations", cmd_name))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the names with where they come from; what they do would need importing them."""
        rows = [(name, _origin(name)) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Evaluations"):
                formatter.write_dl(rows)


def _command(name: str, function: Callable[..., int | None]) -> Any:
    app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
    app.command(name, context_settings=HELP_OPTIONS)(function)
    try:
        return get_command(app)
    except (AssertionError, RuntimeError, TypeError) as error:
        raise PluginError(
            f"evaluation '{name}': its parameters make no command: {error}; annotate them as typer "
            "wants it"
        ) from error


def _origin(name: str) -> str:
    found = registry.providers("evaluations", name)
    return f"of {' and '.join(c.origin for c in found)}" if found else "registered by hand"
