"""Named things that plugins contribute, found by entry point and imported when asked for.

One entry-point group per kind: ``seqmix.mixers``, ``seqmix.positions`` and so on. The names are
known from the metadata of the installed distributions; :func:`get` imports exactly one module.
The registry holds caches only: it can be cleared at any time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from seqmix.blocklist import (
    BLOCK_VARIABLE,
    STRICT_VARIABLE,
    blocked_entries,
    blocked_entry,
    is_strict,
)
from seqmix.contribution import Contribution, Status, load_contribution
from seqmix.errors import PluginError, did_you_mean

if TYPE_CHECKING:
    from seqmix_ir.defn import OpDef
    from seqmix_ir.table import OpTable

__all__ = [
    "KINDS",
    "clear",
    "contributions",
    "get",
    "names",
    "op_table",
    "providers",
    "register_local",
    "statuses",
]

KINDS = (
    "mixers",
    "positions",
    "backends",
    "ops",
    "lowerings",
    "tasks",
    "evaluations",
    "checkpoints",
    "tokenizers",
    "peers",
)

_local: dict[tuple[str, str], Any] = {}
_loaded: dict[Contribution, Any] = {}
_failed: dict[Contribution, PluginError] = {}


def names(kind: str) -> list[str]:
    """Names of one kind that are installed and not blocked, sorted; imports nothing."""
    installed = {c.name for c in _contributions(_checked(kind))}
    return sorted(installed | {name for k, name in _local if k == kind})


def get(kind: str, name: str) -> Any:
    """What is registered under a name; PluginError when it is missing, broken or ambiguous."""
    if (_checked(kind), name) in _local:
        return _local[kind, name]
    if is_strict():
        _raise_first_failure()
    found = providers(kind, name)
    if not found:
        raise PluginError(_unknown(kind, name))
    if len(found) > 1:
        raise PluginError(_ambiguous(kind, name, found))
    return _load(found[0])


def providers(kind: str, name: str) -> list[Contribution]:
    """Every contribution of a name; more than one makes the name unusable."""
    return [c for c in _contributions(_checked(kind)) if c.name == name]


def contributions() -> list[Contribution]:
    """Every contribution of every kind, blocked ones included; imports nothing."""
    return [c for kind in KINDS for c in _discovered(kind)]


def statuses() -> list[Status]:
    """Every contribution with what came of loading it; imports all of them, each for itself.

    The hooks come last, among them those that failed when they were called.
    """
    from seqmix.hooks import hook_statuses

    blocked, result = blocked_entries(), []
    for c in contributions():
        entry = blocked_entry(c.distribution, c.name, blocked)
        if entry is not None:
            result.append(Status(c, "blocked", f"{BLOCK_VARIABLE} lists '{entry}'"))
            continue
        try:
            if len(found := providers(c.kind, c.name)) > 1:
                raise PluginError(_ambiguous(c.kind, c.name, found))
            _load(c)
        except PluginError as error:
            result.append(Status.failed(c, error))
        else:
            result.append(Status(c, "ok"))
    return [*result, *hook_statuses()]


def op_table() -> OpTable:
    """A table of the core ops that loads the ops of plugins when they are met."""
    from seqmix_ir.ops import default_table

    def load(name: str) -> type[OpDef] | None:
        known = name in names("ops")
        loaded: type[OpDef] | None = get("ops", name) if known else None
        return loaded

    return default_table(load, lambda: names("ops"))


@contextmanager
def register_local(kind: str, name: str, thing: Any) -> Iterator[None]:
    """Register a thing by hand while the context lasts: for notebooks and tests.

    It stands before an installed one of that name; PluginError when the name is local already.
    """
    key = (_checked(kind), name)
    if key in _local:
        raise PluginError(
            f"{kind[:-1]} '{name}' is registered by hand already: {_local[key]!r}; leave that "
            "context first, or choose another name"
        )
    _local[key] = thing
    try:
        yield
    finally:
        del _local[key]


def clear() -> None:
    """Forget what was discovered and loaded; the next call looks again."""
    _discovered.cache_clear()
    _loaded.clear()
    _failed.clear()
    _warn_unmatched.cache_clear()


def _checked(kind: str) -> str:
    if kind not in KINDS:
        raise PluginError(f"no kind '{kind}'{did_you_mean(kind, KINDS)}; known: {', '.join(KINDS)}")
    return kind


@cache
def _discovered(kind: str) -> tuple[Contribution, ...]:
    """Contributions of one kind by name; the same entry of one distribution counts once."""
    found: dict[tuple[str, str], Contribution] = {}
    for point in entry_points(group=f"seqmix.{kind}"):
        found.setdefault((point.name, point.value), Contribution.of(kind, point))
    return tuple(sorted(found.values(), key=lambda c: (c.name, c.distribution, c.value)))


def _contributions(kind: str) -> list[Contribution]:
    """Contributions that are not blocked."""
    blocked = blocked_entries()
    if blocked:
        _warn_unmatched(tuple(blocked))
    return [c for c in _discovered(kind) if blocked_entry(c.distribution, c.name, blocked) is None]


@cache
def _warn_unmatched(entries: tuple[str, ...]) -> None:
    """Warn of entries of the block list that block nothing; a typo there is easily missed."""
    from seqmix.hooks import hook_origins

    everything = [(c.distribution, c.name) for c in contributions()] + hook_origins()
    for entry in entries:
        if not any(blocked_entry(dist, name, [entry]) for dist, name in everything):
            warnings.warn(
                f"{BLOCK_VARIABLE} lists '{entry}', which is neither an installed distribution "
                "with seqmix plugins nor the name of a plugin",
                stacklevel=2,
            )


def _load(contribution: Contribution) -> Any:
    if contribution in _failed:
        # Without the frames of earlier attempts; the cause stays chained.
        raise _failed[contribution].with_traceback(None)
    if contribution not in _loaded:
        try:
            _loaded[contribution] = load_contribution(contribution, _BASES)
        except PluginError as error:
            _failed[contribution] = error
            raise
    return _loaded[contribution]


def _raise_first_failure() -> None:
    for status in statuses():
        if status.error is not None:
            cause = status.error.__cause__ or status.error
            raise PluginError(f"{STRICT_VARIABLE} is set: {status.reason}") from cause


def _unknown(kind: str, name: str) -> str:
    installed = names(kind)
    for c in _discovered(kind):
        if c.name == name:
            return f"{kind[:-1]} '{name}' of {c.origin} is blocked by {BLOCK_VARIABLE}"
    listed = ", ".join(installed) or "none"
    return f"no {kind[:-1]} '{name}'{did_you_mean(name, installed)}; installed: {listed}"


def _ambiguous(kind: str, name: str, found: list[Contribution]) -> str:
    origins = " and ".join(c.origin for c in found)
    return (
        f"{kind[:-1]} '{name}' is provided by {origins}; uninstall one, or set "
        f"{BLOCK_VARIABLE} to the distribution to ignore"
    )


def _mixer_base() -> type:
    from seqmix.mixer import SequenceMixer

    return SequenceMixer


def _position_base() -> type:
    from seqmix.position import PositionEncoding

    return PositionEncoding


def _backend_base() -> type:
    from seqmix.backend import Backend

    return Backend


def _op_base() -> type:
    from seqmix_ir.defn import OpDef

    return OpDef


def _reader_base() -> type:
    from seqmix.checkpoint import CheckpointReader

    return CheckpointReader


_BASES: dict[str, Callable[[], type]] = {
    "mixers": _mixer_base,
    "positions": _position_base,
    "backends": _backend_base,
    "ops": _op_base,
    "checkpoints": _reader_base,
}
