"""Throw-away distributions: wheels written by hand, and really installed with pip."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

__all__ = ["Distribution", "install"]


@dataclass(frozen=True)
class Distribution:
    """A distribution: sources by path, and entry points by group and name."""

    name: str
    version: str
    sources: Mapping[str, str] = field(default_factory=dict)
    entry_points: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def write_wheel(self, folder: Path) -> Path:
        """Write the wheel; pip checks nothing of RECORD but that it is there."""
        stem = f"{self.name.replace('-', '_')}-{self.version}"
        info = f"{stem}.dist-info"
        files = {path: dedent(text) for path, text in self.sources.items()}
        files[f"{info}/METADATA"] = (
            f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n"
        )
        files[f"{info}/WHEEL"] = (
            "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        files[f"{info}/entry_points.txt"] = self._entry_point_lines()
        record = f"{info}/RECORD"
        files[record] = "".join(f"{path},,\n" for path in [*files, record])
        path = folder / f"{stem}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for name, text in files.items():
                wheel.writestr(name, text)
        return path

    def _entry_point_lines(self) -> str:
        lines = []
        for group, points in self.entry_points.items():
            lines.append(f"[{group}]")
            lines += [f"{name} = {value}" for name, value in points.items()]
        return "\n".join(lines) + "\n"


def install(distributions: Iterable[Distribution], folder: Path) -> Path:
    """Install with pip into a directory of their own, to be put on the path."""
    target = folder / "site"
    wheels = [str(d.write_wheel(folder)) for d in distributions]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    alone = ["--no-deps", "--no-index", "--no-compile", "--target", str(target)]
    result = subprocess.run(
        [sys.executable, "-m", "pip", "install", *quiet, *alone, *wheels],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"pip failed:\n{result.stdout}{result.stderr}")
    return target
