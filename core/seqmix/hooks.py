"""Cross-cutting hooks, by pluggy: few, loaded at the first compile, isolated one by one.

A plugin module offers them under the entry-point group ``seqmix.hooks`` and marks each function
with :data:`hookimpl`. A plugin that cannot be loaded, or a hook that raises, is reported as a
warning that names its distribution; the others still run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import pluggy

from seqmix.blocklist import blocked_entries, blocked_entry, is_strict
from seqmix.contribution import Contribution, Status
from seqmix.errors import PluginError

if TYPE_CHECKING:
    from seqmix.backend import Executable
    from seqmix_ir.graph import Module
    from seqmix_ir.passes import Rule

__all__ = [
    "choose_backend",
    "clear",
    "compiled",
    "hook_origins",
    "hook_statuses",
    "hookimpl",
    "rewrites",
]

PROJECT = "seqmix"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Specs:
    """What a plugin may implement."""

    @hookspec
    def seqmix_rewrites(self, backend: str) -> list[Rule]:
        """IR rewrite rules that run with canonicalization for a backend."""
        raise PluginError("a hook specification is not called")

    @hookspec(firstresult=True)
    def seqmix_choose_backend(self, module: Module, candidates: list[str]) -> str | None:
        """The backend that ``auto`` takes for a module; None leaves it to others."""
        raise PluginError("a hook specification is not called")

    @hookspec
    def seqmix_compiled(self, module: Module, executable: Executable) -> None:
        """Called with every executable that was compiled."""
        raise PluginError("a hook specification is not called")


def rewrites(backend: str) -> list[Rule]:
    """Rules of every plugin for a backend, in order of the plugins' names."""
    rules: list[Rule] = []
    for name, implementation in _implementations("seqmix_rewrites"):
        rules.extend(_call(name, "seqmix_rewrites", implementation, backend=backend) or ())
    return rules


def choose_backend(module: Module, candidates: list[str]) -> tuple[str, str] | None:
    """The first plugin's choice, with the plugin's name; None when none chooses."""
    for name, implementation in _implementations("seqmix_choose_backend"):
        choice = _call(
            name, "seqmix_choose_backend", implementation, module=module, candidates=candidates
        )
        if choice in candidates:
            return choice, name
        if choice is not None:
            _report(f"hook seqmix_choose_backend of {name} chose {choice!r}, not in {candidates}")
    return None


def compiled(module: Module, executable: Executable) -> None:
    """Tell every plugin of a finished compilation."""
    for name, implementation in _implementations("seqmix_compiled"):
        _call(name, "seqmix_compiled", implementation, module=module, executable=executable)


def hook_origins() -> list[tuple[str, str]]:
    """Distribution and name of every hook plugin, blocked ones included; imports nothing."""
    return [(c.distribution, c.name) for c, _ in _points()]


def hook_statuses() -> list[Status]:
    """Every hook plugin with what came of loading it."""
    return list(_manager()[1])


def clear() -> None:
    """Forget the loaded hooks; the next compile loads them again."""
    _manager.cache_clear()


def _points() -> list[tuple[Contribution, EntryPoint]]:
    found = {(p.name, p.value): p for p in entry_points(group="seqmix.hooks")}
    pairs = [(Contribution.of("hooks", point), point) for point in found.values()]
    return sorted(pairs, key=lambda pair: (pair[0].name, pair[0].distribution))


@cache
def _manager() -> tuple[pluggy.PluginManager, tuple[Status, ...]]:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Specs)
    statuses = tuple(_register(manager, c, point) for c, point in _points())
    for status in statuses:
        if status.state == "failed":
            _report(status.reason)
    return manager, statuses


def _register(manager: pluggy.PluginManager, c: Contribution, point: EntryPoint) -> Status:
    """Load one plugin; whatever goes wrong stays with it."""
    where = f"hooks '{c.name}' of {c.origin}"
    entry = blocked_entry(c.distribution, c.name, blocked_entries())
    if entry is not None:
        return Status(c, "blocked", f"SEQMIX_BLOCK_PLUGINS lists '{entry}'")
    plugin: Any = None
    try:
        plugin = point.load()
        manager.register(plugin, name=f"{c.name} ({c.origin})")
        _check_pending(manager)
    except Exception as error:
        if plugin is not None and manager.is_registered(plugin):
            manager.unregister(plugin)
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        return Status(c, "failed", f"{where}: {reason}; update {c.distribution} or block it")
    return Status(c, "ok")


def _check_pending(manager: pluggy.PluginManager) -> None:
    """PluginError for an implementation without a specification: a misspelt hook."""
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        known = ", ".join(sorted(n for n in vars(Specs) if n.startswith("seqmix_")))
        raise PluginError(f"{error}; the hooks are {known}") from error


def _implementations(hook: str) -> list[tuple[str, Callable[..., Any]]]:
    """Name and function of every implementation, in order of the plugins' names."""
    caller = getattr(_manager()[0].hook, hook)
    return sorted(
        ((impl.plugin_name, _picked(impl)) for impl in caller.get_hookimpls()),
        key=lambda pair: pair[0],
    )


def _picked(impl: Any) -> Callable[..., Any]:
    """The implementation, called with just the arguments that it names."""
    return lambda **arguments: impl.function(*(arguments[name] for name in impl.argnames))


def _call(name: str, hook: str, implementation: Callable[..., Any], **arguments: Any) -> Any:
    try:
        return implementation(**arguments)
    except Exception as error:
        _report(f"hook {hook} of {name} failed: {type(error).__name__}: {error}", error)
        return None


def _report(message: str, cause: Exception | None = None) -> None:
    """Warn; in strict mode raise."""
    if is_strict():
        raise PluginError(message) from cause
    warnings.warn(message, stacklevel=3)
