"""Golden error messages: what a user reads in one situation, one file each.

A file holds the class of the error and its text. Temporary folders, versions and the numbers of
source lines are replaced first; a line number by the line itself, so that it must be the right one.
``SEQMIX_UPDATE_GOLDEN=1`` writes what is found instead of comparing; read the diff afterwards.
"""

from __future__ import annotations

import inspect
import linecache
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

__all__ = ["Situations", "cases", "check_message", "unclaimed"]

Function = TypeVar("Function", bound=Callable[..., object])
_ROOT = Path(__file__).parent


class Situations:
    """A decorator that gathers what brings a user to an error of one layer.

    The golden file of a function is ``layer/name_of_the_function.txt``.
    """

    def __init__(self, layer: str) -> None:
        self.layer = layer
        self.named: dict[str, Callable[..., object]] = {}
        self._foreign: dict[str, str] = {}

    def __repr__(self) -> str:
        return self.layer

    def __call__(self, function: Function) -> Function:
        self.named[function.__name__] = function
        return function

    def quoting(self, foreign: str) -> Callable[[Function], Function]:
        """Register a situation whose text quotes another package: what the pattern's group finds.

        That part may change with the package's version, and is left out.
        """

        def register(function: Function) -> Function:
            self._foreign[function.__name__] = foreign
            return self(function)

        return register

    def message(self, name: str, replaced: Mapping[str, str], *arguments: object) -> str:
        """Class and text of what a situation raises, fit to be compared.

        ``replaced`` maps pieces of the text, such as a folder, to what stands for them.
        """
        function = self.named[name]
        try:
            function(*arguments)
        except Exception as error:
            # Notes are printed below the message of a traceback.
            text = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        else:
            raise AssertionError(f"{self.layer}/{name} raised nothing")
        for piece, stand_in in replaced.items():
            text = text.replace(piece, stand_in)
        if found := re.search(self._foreign.get(name, r"()\A"), text, re.DOTALL):
            text = text[: found.start(1)] + "<...>" * bool(found[1]) + text[found.end(1) :]
        text = re.sub(r" at 0x[0-9a-f]+", "", text)
        return _with_lines(text, inspect.getfile(function)).rstrip() + "\n"


def cases(*layers: Situations) -> list[tuple[Situations, str]]:
    """Every situation of some layers."""
    return [(layer, name) for layer in layers for name in layer.named]


def check_message(layer: Situations, name: str, found: str) -> None:
    """Compare with the golden file, or write it."""
    path = _ROOT / layer.layer / f"{name}.txt"
    if os.environ.get("SEQMIX_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
        return
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    assert found == expected, f"{path.name}: SEQMIX_UPDATE_GOLDEN=1 writes what is found"


def unclaimed(layers: Iterable[Situations]) -> list[str]:
    """Golden files of some layers that no situation compares with."""
    return [
        str(path.relative_to(_ROOT))
        for layer in layers
        for path in sorted((_ROOT / layer.layer).glob("*.txt"))
        if path.stem not in layer.named
    ]


def _with_lines(text: str, source: str) -> str:
    """``file.py:12`` as ``file.py:<the line itself>``; of other files than ``source``, no line."""

    def line(match: re.Match[str]) -> str:
        if match[1] != Path(source).name:
            return f"{match[1]}:<line>"
        return f"{match[1]}:<{linecache.getline(source, int(match[2])).strip()}>"

    return re.sub(r"(\w+\.py):(\d+)", line, text)
