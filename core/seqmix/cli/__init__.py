"""The command ``seqmix``. Commands import what they need when they run, so that help is quick."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import typer

from seqmix.cli.app import app
from seqmix.errors import IRError, SeqmixError

__all__ = ["app", "invoke", "main"]

TRACEBACK = "--traceback"

# The base of all usage errors; where it lives differs between versions of typer.
_UsageError: Any = typer.BadParameter.__base__


def main() -> None:
    """Run the command line of this process and exit."""
    sys.exit(invoke(sys.argv[1:]))


def invoke(arguments: Sequence[str]) -> int:
    """Run a command line; its exit status.

    What a user can mend is one line on standard error and status 2; ``--traceback`` raises it.
    """
    given = [a for a in arguments if a != TRACEBACK]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return int(app(given, prog_name="seqmix", standalone_mode=False) or 0)
    except (SeqmixError, IRError, OSError, _UsageError) as error:
        if TRACEBACK in arguments:
            raise
        sys.stderr.write(f"error: {_one_line(error)}\n")
        return 2
    except typer.Abort:  # Some versions of typer make one of an interrupt, others status 130.
        return 130


def _one_line(error: Any) -> str:
    """The first line of an error, and how to see the others."""
    if isinstance(error, _UsageError):
        where = error.ctx.command_path if error.ctx else "seqmix"
        return f"{error.format_message().rstrip('.')}; see {where} --help"
    first, *rest = str(error).splitlines() or [type(error).__name__]
    return f"{first} ({TRACEBACK} shows more)" if rest else first


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning is one line for people, without the place in our sources."""
    sys.stderr.write(f"warning: {message}\n")
