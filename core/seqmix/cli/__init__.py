"""The command ``seqmix``. Commands import what they need when they run, so that help is quick."""

from __future__ import annotations

import sys

from seqmix.cli.app import app
from seqmix.errors import IRError, SeqmixError

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line: errors of seqmix are one line and exit status 2."""
    arguments = sys.argv[1:]
    trace = "--traceback" in arguments
    try:
        app([a for a in arguments if a != "--traceback"], standalone_mode=True)
    except (SeqmixError, IRError) as error:
        if trace:
            raise
        first, *rest = str(error).splitlines() or [type(error).__name__]
        more = " (--traceback shows more)" if rest else ""
        sys.stderr.write(f"error: {first}{more}\n")
        sys.exit(2)
