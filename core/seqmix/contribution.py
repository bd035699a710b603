"""One entry point of a distribution: what it offers, and what came of loading it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any

from seqmix.errors import PluginError

__all__ = ["API", "Contribution", "Status", "load_contribution"]

API = (1, 0)
"""The version of the plugin interface: a plugin's major must be equal, its minor not above."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """An entry point with its origin; nothing is imported yet."""

    kind: str
    name: str
    value: str
    distribution: str
    version: str

    @property
    def origin(self) -> str:
        """The distribution and its version."""
        return f"{self.distribution} {self.version}"

    @staticmethod
    def of(kind: str, point: EntryPoint) -> Contribution:
        """The contribution behind an entry point."""
        dist = point.dist
        name = "unknown distribution" if dist is None else dist.metadata["Name"]
        return Contribution(
            kind, point.name, point.value, name, "?" if dist is None else dist.version
        )


@dataclass(frozen=True, slots=True)
class Status:
    """A contribution and whether it can be used: ``ok``, ``failed`` or ``blocked``, and why."""

    contribution: Contribution
    state: str
    reason: str = ""
    error: PluginError | None = field(default=None, compare=False, repr=False)
    """What was raised, with its cause chained."""

    @staticmethod
    def failed(contribution: Contribution, error: PluginError) -> Status:
        """The status of a contribution that cannot be used."""
        return Status(contribution, "failed", str(error), error)


def load_contribution(contribution: Contribution, bases: Mapping[str, Callable[[], type]]) -> Any:
    """Import what the entry point names and check its kind and interface version.

    Raises PluginError that names the distribution, its version, the cause (chained) and the remedy.
    """
    where = f"{contribution.kind[:-1]} '{contribution.name}' of {contribution.origin}"
    point = EntryPoint(contribution.name, contribution.value, f"seqmix.{contribution.kind}")
    try:
        with _own_device():
            loaded = point.load()
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{where}: importing '{contribution.value}' failed: {type(error).__name__}: {error}; "
            f"reinstall or update {contribution.distribution}, or block it with "
            f"SEQMIX_BLOCK_PLUGINS={contribution.distribution}"
        ) from error
    _check_kind(where, contribution, loaded, bases)
    _check_name(where, contribution, loaded)
    _check_api(where, contribution, loaded)
    return loaded


def _own_device() -> AbstractContextManager[Any]:
    """Where imports make their constants: in memory, wherever a plugin is first used.

    Models without memory are built within ``torch.device("meta")``; that may import their plugins.
    """
    torch = sys.modules.get("torch")
    return nullcontext() if torch is None else torch.device("cpu")


def _check_kind(
    where: str, contribution: Contribution, loaded: object, bases: Mapping[str, Callable[[], type]]
) -> None:
    if contribution.kind == "evaluations" and not callable(loaded):
        raise PluginError(
            f"{where}: '{contribution.value}' should be a function that typer makes a command of, "
            f"found {loaded!r}; report it to the authors of {contribution.distribution}"
        )
    if contribution.kind not in bases:
        return
    base = bases[contribution.kind]()
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise PluginError(
            f"{where}: '{contribution.value}' should be a subclass of "
            f"{base.__module__}.{base.__qualname__}, found {loaded!r}; "
            f"report it to the authors of {contribution.distribution}"
        )


def _check_name(where: str, contribution: Contribution, loaded: Any) -> None:
    """Things that are saved by their own name must be found again under it."""
    if contribution.kind in ("backends", "ops") and loaded.name != contribution.name:
        raise PluginError(
            f"{where}: '{contribution.value}' calls itself '{loaded.name}'; the entry point and "
            f"the class should agree; report it to the authors of {contribution.distribution}"
        )


def _check_api(where: str, contribution: Contribution, loaded: object) -> None:
    api = getattr(loaded, "api", API)
    if not (isinstance(api, tuple) and len(api) == 2 and all(isinstance(n, int) for n in api)):
        raise PluginError(f"{where}: api should be (major, minor), found {api!r}")
    if api[0] == API[0] and api[1] <= API[1]:
        return
    remedy = "seqmix" if api > API else contribution.distribution
    raise PluginError(
        f"{where}: it is written for plugin interface {api[0]}.{api[1]}, "
        f"this seqmix has {API[0]}.{API[1]}; update {remedy}"
    )
