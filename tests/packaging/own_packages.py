"""Packages that are installed for real into a folder, and processes that see them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["install", "run"]


def install(sources: Sequence[Path], target: Path) -> None:
    """Let pip build and install packages from their sources, from nothing but what is here."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    alone = ["--no-deps", "--no-index", "--no-build-isolation", "--target", str(target)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *quiet, *alone, *map(str, sources)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def run(site: Path, *arguments: str, folder: Path | None = None, **variables: str) -> str:
    """What a Python module prints in a process of its own that finds ``site``."""
    hidden = ("SEQMIX_BLOCK_PLUGINS", "SEQMIX_STRICT_PLUGINS", "SEQMIX_BACKEND")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        cwd=folder,
        env={**environment, "PYTHONPATH": str(site), "COLUMNS": "200", **variables},
    )
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return done.stdout
