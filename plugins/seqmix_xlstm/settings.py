"""Configurations of other projects: read from a file or a mapping, and asked option by option."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from seqmix import reading
from seqmix.errors import CheckpointError, did_you_mean
from seqmix.inside import file_inside
from seqmix.reading import UnreadableError
from seqmix_xlstm.bounded_yaml import parse_yaml

__all__ = ["ConfigSource", "Settings", "read_settings"]

ConfigSource: TypeAlias = "Path | str | Mapping[str, Any]"

MAPPING = "config"
"""What errors call options that are in no file."""
LIMIT = 1_000_000
"""Bytes of a configuration, which has some thousand."""
LAYERS = 2000
"""The deepest models have some two hundred; the shapes of a block take a millisecond."""
LARGEST = 1e12
SHORT = 12


def read_settings(source: ConfigSource) -> Settings:
    """The options in a ``.json``, ``.yaml`` or ``.yml`` file, or in a mapping.

    CheckpointError for a file that is missing or unreadable, or holds something else.
    """
    if isinstance(source, Mapping):
        return Settings(source, MAPPING)
    path = Path(source)
    if path.suffix not in (".json", ".yaml", ".yml"):
        raise CheckpointError(f"{path}: expected a configuration in .json, .yaml or .yml")
    try:
        text = reading.read_text(file_inside(path.parent, path.name), LIMIT)
        data = reading.parse_json(text) if path.suffix == ".json" else parse_yaml(text)
    except UnreadableError as error:
        raise CheckpointError(f"{path}: no readable configuration: it {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: should be a mapping, found {type(data).__name__}")
    return Settings(data, str(path))


class Settings:
    """Options by name. Each question names its default; every error says file, option and value.

    An option that is written as null counts as not written, where no method says otherwise.
    """

    def __init__(self, data: Mapping[str, Any], where: str, place: str = "") -> None:
        """``where`` begins every error; ``place`` is that of a nested group, as ``a.b.``."""
        self.data = data
        self.where = where
        self.place = place

    @property
    def is_file(self) -> bool:
        """Whether the options come from a file, whose path is ``where`` then."""
        return self.where != MAPPING

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def group(self, key: str) -> Settings | None:
        """The options below ``key``; None when there are none."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(key, "a group of options", value)
        return Settings(value, self.where, f"{self.place}{key}.")

    def integer(self, key: str, default: int | None, least: int = 1) -> int:
        """A whole number of at least ``least``; without a default it must be there."""
        value = self.data.get(key)
        value = default if value is None else value
        if type(value) is not int or not least <= value < LARGEST:
            raise self.wrong(key, f"a whole number >= {least}", value)
        return value

    def at_most(self, key: str, default: int | None, tensors: int) -> int:
        """How many blocks there are: no more than tensors, or time and memory run out."""
        if (value := self.integer(key, default)) > min(tensors, LAYERS):
            raise self.wrong(
                key, f"at most {tensors}, the number of tensors in all, and {LAYERS}", value
            )
        return value

    def real(self, key: str, default: float) -> float:
        """A number above 0."""
        value = self.data.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST:
            raise self.wrong(key, "a number > 0", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.data.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def choice(self, key: str, default: str, choices: Mapping[str, str]) -> str:
        """What stands for the option in ``choices``."""
        value = self.data.get(key)
        value = default if value is None else value
        if not isinstance(value, str) or value not in choices:
            known = " or ".join(map(repr, choices))
            raise self.wrong(key, known, value)
        return choices[value]

    def require(self, key: str, *accepted: Any) -> None:
        """Nothing else than these values is supported; no entry counts as the first of them."""
        value = self.data.get(key, accepted[0])
        if not any(value == a and isinstance(value, bool) == isinstance(a, bool) for a in accepted):
            known = " or ".join(map(_written, accepted))
            raise self.wrong(key, f"{known}, nothing else is supported", value)

    def refuse_unknown(self, known: Collection[str]) -> None:
        """CheckpointError for options that are not ``known``; what others compute is no matter."""
        for key in self.data:
            if key not in known and not str(key).startswith("_"):
                raise CheckpointError(
                    f"{self.where}: unknown option '{self.place}{str(key)[:80]}' = "
                    f"{_written(self.data[key])[:60]}{did_you_mean(str(key)[:80], known)}; "
                    f"known: {', '.join(sorted(known))}"
                )

    def wrong(self, key: str, expected: str, found: Any) -> CheckpointError:
        """The error for an option."""
        return CheckpointError(
            f"{self.where}: {self.place}{key} should be {expected}, found {_written(found)[:80]}"
        )


def _written(value: Any) -> str:
    """A value as configuration files have it; short, since YAML can make small files unfold."""
    if isinstance(value, Mapping):
        return f"a group of {len(value)} options"
    if isinstance(value, list | tuple) and (
        len(value) > SHORT or any(isinstance(v, list | tuple | Mapping) for v in value)
    ):
        return f"a list of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a whole number of {value.bit_length()} bits"
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
