"""The op table: op classes by name, with late loading for ops that live in plugins."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable

from seqmix_ir.defn import OpDef
from seqmix_ir.errors import IRError, did_you_mean

__all__ = ["OpTable"]


class OpTable:
    """Op classes by name. ``load(name)`` is asked for names that are not there yet."""

    def __init__(
        self,
        ops: Iterable[type[OpDef]] = (),
        load: Callable[[str], type[OpDef] | None] | None = None,
        more_names: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """Start with ``ops``; ``more_names()`` lists what ``load`` could bring."""
        self._ops: dict[str, type[OpDef]] = {}
        self._load = load
        self._more_names = more_names
        for cls in ops:
            self.register(cls)

    def register(self, cls: type[OpDef]) -> type[OpDef]:
        """Add an op class; IRError when another class has its name."""
        known = self._ops.setdefault(cls.name, cls)
        if known is not cls:
            raise IRError(
                f"op '{cls.name}' is defined by both {_home(known)} and {_home(cls)}; rename one"
            )
        return cls

    def lookup(self, name: str) -> type[OpDef]:
        """The class called ``name``; IRError with near names when there is none."""
        if (cls := self._ops.get(name)) is not None:
            return cls
        if self._load is not None and (loaded := self._load(name)) is not None:
            return self.register(loaded)
        hint = did_you_mean(name, self.names())
        raise IRError(f"unknown op '{name}'{hint} (is the plugin that defines it installed?)")

    def names(self) -> list[str]:
        """Every name that can be looked up, sorted."""
        return sorted({*self._ops, *self._more_names()})


def _home(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__} ({inspect.getsourcefile(cls)})"
