"""Cross-cutting hooks, by pluggy: few, loaded at the first compile, isolated one by one.

A plugin module offers them under the entry-point group ``seqmix.hooks`` and marks each function
with :data:`hookimpl`. A plugin that cannot be loaded, or a hook that raises, is reported as a
warning that names its distribution; the others still run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import pluggy

from seqmix.blocklist import BLOCK_VARIABLE, blocked_entries, blocked_entry, is_strict
from seqmix.contribution import Contribution, Status, load_contribution
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

_raised: dict[str, Status] = {}


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
        rules += (
            _call(name, "seqmix_rewrites", _giving_rules(implementation), backend=backend) or []
        )
    return rules


def choose_backend(module: Module, candidates: list[str]) -> tuple[str, str] | None:
    """The first plugin's choice, with the plugin's name; None when none chooses."""
    spec = "seqmix_choose_backend"
    for name, implementation in _implementations(spec):
        # Each gets a list of its own, so that none changes what the next one sees.
        choice = _call(name, spec, implementation, module=module, candidates=list(candidates))
        if choice in candidates:
            return choice, name
        if choice is not None:
            listed = ", ".join(candidates)
            _fail(name, PluginError(f"hook {spec} of {name} chose {choice!r}, not one of {listed}"))
    return None


def compiled(module: Module, executable: Executable) -> None:
    """Tell every plugin of a finished compilation."""
    for name, implementation in _implementations("seqmix_compiled"):
        _call(name, "seqmix_compiled", implementation, module=module, executable=executable)


def hook_origins() -> list[tuple[str, str]]:
    """Distribution and name of every hook plugin, blocked ones included; imports nothing."""
    return [(c.distribution, c.name) for c in _discovered()]


def hook_statuses() -> list[Status]:
    """Every hook plugin with what came of loading it, and of calling it so far."""
    return [_raised.get(_name(status.contribution), status) for status in _manager()[1]]


def clear() -> None:
    """Forget the loaded hooks; the next compile loads them again."""
    _manager.cache_clear()
    _warn_of_failures.cache_clear()
    _raised.clear()


def _discovered() -> list[Contribution]:
    found = {(p.name, p.value): p for p in entry_points(group="seqmix.hooks")}
    every = [Contribution.of("hooks", point) for point in found.values()]
    return sorted(every, key=lambda c: (c.name, c.distribution))


def _name(c: Contribution) -> str:
    return f"{c.name} ({c.origin})"


@cache
def _manager() -> tuple[pluggy.PluginManager, tuple[Status, ...]]:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Specs)
    return manager, tuple(_register(manager, c) for c in _discovered())


@cache
def _warn_of_failures() -> None:
    """Report the plugins that could not be loaded, once."""
    for status in _manager()[1]:
        if status.error is not None:
            _report(status.error)


def _register(manager: pluggy.PluginManager, c: Contribution) -> Status:
    """Load one plugin; whatever goes wrong stays with it."""
    entry = blocked_entry(c.distribution, c.name, blocked_entries())
    if entry is not None:
        return Status(c, "blocked", f"{BLOCK_VARIABLE} lists '{entry}'")
    try:
        plugin = load_contribution(c, {})
    except PluginError as error:
        return Status.failed(c, error)
    try:
        manager.register(plugin, name=_name(c))
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError) as error:
        if manager.get_plugin(_name(c)) is not None:
            manager.unregister(name=_name(c))
        return Status.failed(c, _invalid(c, error))
    return Status(c, "ok")


def _invalid(c: Contribution, cause: Exception) -> PluginError:
    """The error for hooks that do not fit their specifications, or have none: misspelt ones."""
    reason = " ".join(str(cause).split())
    known = ", ".join(sorted(n for n in vars(Specs) if n.startswith("seqmix_")))
    error = PluginError(
        f"hook '{c.name}' of {c.origin}: {reason}; the hooks are {known}; update "
        f"{c.distribution}, or block it with {BLOCK_VARIABLE}={c.distribution}"
    )
    error.__cause__ = cause
    return error


def _implementations(hook: str) -> list[tuple[str, Callable[..., Any]]]:
    """Name and function of every implementation, in order of the plugins' names.

    Those marked ``tryfirst`` stand before the others, those marked ``trylast`` after them.
    """
    _warn_of_failures()
    found = getattr(_manager()[0].hook, hook).get_hookimpls()
    found.sort(key=lambda impl: (impl.trylast, not impl.tryfirst, impl.plugin_name))
    return [(impl.plugin_name, _picked(impl)) for impl in found]


def _picked(impl: Any) -> Callable[..., Any]:
    """The implementation, called with just the arguments that it names."""
    return lambda **arguments: impl.function(*(arguments[name] for name in impl.argnames))


def _giving_rules(implementation: Callable[..., Any]) -> Callable[..., list[Rule]]:
    """The implementation, with its result checked."""

    def checked(**arguments: Any) -> list[Rule]:
        rules = list(implementation(**arguments) or ())
        if wrong := [rule for rule in rules if not callable(rule)]:
            raise TypeError(f"rules should be callable, found {wrong[0]!r}")
        return rules

    return checked


def _call(name: str, hook: str, implementation: Callable[..., Any], **arguments: Any) -> Any:
    try:
        return implementation(**arguments)
    except Exception as error:
        failure = PluginError(f"hook {hook} of {name} failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        _fail(name, failure)
        return None


def _fail(name: str, error: PluginError) -> None:
    """Keep what a plugin did wrong, for its status, and report it."""
    for c in _discovered():
        if _name(c) == name:
            _raised[name] = Status.failed(c, error)
    _report(error)


def _report(error: PluginError) -> None:
    """Warn; in strict mode raise."""
    if is_strict():
        raise error
    warnings.warn(str(error), stacklevel=3)
