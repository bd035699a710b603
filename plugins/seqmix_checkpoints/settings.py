"""Typed access to the entries of a foreign ``config.json``; errors name the place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqmix import reading
from seqmix.errors import CheckpointError
from seqmix.inside import file_inside
from seqmix.reading import UnreadableError

__all__ = ["Settings", "number", "read_json", "shown"]

SHOWN = 200


class Settings:
    """The entries of a configuration, with the defaults that its family has for missing ones.

    An entry that is there and null stays null: some families mean something by it.
    """

    def __init__(
        self, data: Mapping[str, Any], where: str, defaults: Mapping[str, Any] | None = None
    ) -> None:
        """``where`` begins every error."""
        self.where = where
        self.data: Mapping[str, Any] = {**(defaults or {}), **data}

    def integer(self, key: str, missing: int | None = None) -> int:
        """A number >= 1; ``missing`` stands for no entry or null, which are errors without it."""
        value = self.data.get(key)
        value = missing if value is None else value
        if type(value) is not int or value < 1:
            raise CheckpointError(
                f"{self.where}: {key} should be a whole number >= 1, found {shown(value)}"
            )
        return value

    def flag(self, key: str, missing: bool = False) -> bool:
        """True or false; ``missing`` stands for a null or no entry."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, bool):
            raise CheckpointError(
                f"{self.where}: {key} should be true or false, found {shown(value)}"
            )
        return missing if value is None else value

    def real(self, key: str, missing: float) -> float:
        """A finite number."""
        return number(self.data.get(key, missing), key, self.where)

    def choice(self, key: str, choices: Mapping[str, str], missing: str) -> str:
        """What stands for the entry in ``choices``."""
        value = self.data.get(key, missing)
        if not isinstance(value, str) or value not in choices:
            known = ", ".join(map(repr, choices))
            raise CheckpointError(
                f"{self.where}: {key} {shown(value)} is not supported; {key} should be one of "
                f"{known}"
            )
        return choices[value]

    def ids(self, key: str) -> list[int]:
        """Token ids: one, a list or none."""
        value = self.data.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if any(type(i) is not int or i < 0 for i in ids):
            raise CheckpointError(
                f"{self.where}: token ids should be numbers >= 0, found {key} {shown(value)}"
            )
        return ids


def number(value: Any, name: str, where: str) -> float:
    """A finite number of sane size, of a field called ``name``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise CheckpointError(f"{where}: {name} should be a number, found {shown(value)}")
    return float(value)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file of a folder; CheckpointError when there is none, or it lies outside."""
    try:
        data = reading.read_json(file_inside(path.parent, path.name))
    except UnreadableError as error:
        raise CheckpointError(f"{path}: {error}; fetch it again") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: should be an object, found {type(data).__name__}")
    return data


def shown(value: Any) -> str:
    """A value for an error, which a file may have made long."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
