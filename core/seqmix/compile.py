"""The way of a model through the house: capture, lower for a backend, compile, keep."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from seqmix import cache, hooks, registry
from seqmix.backend import Backend, Executable, Program
from seqmix.choose import BackendLegality, try_backends
from seqmix.errors import BackendError, ConfigError, PluginError
from seqmix.finite import find_nan
from seqmix.interface import MANIFEST, read_manifest
from seqmix.keys import compile_key
from seqmix.whole_folder import read_steadily
from seqmix_ir.graph import Module
from seqmix_ir.passes import Legalization, Watcher, lower

if TYPE_CHECKING:
    from seqmix.checkpoint import Checkpoint
    from seqmix.model import Model

__all__ = ["compile", "load", "program_of"]

Source: TypeAlias = "Model | Program | Checkpoint"
Made: TypeAlias = "tuple[Executable, Module, list[str]]"
"""The program on a backend, the module that was compiled, and what is to be said of it."""

_one_thread = RLock()
"""Capturing changes torch while it lasts, and so does building with TVM: one thread at a time."""


def compile(
    source: Source,
    backend: str | Backend = "auto",
    target: str | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    logits_to_keep: int = 0,
    cache: bool = True,
    check_weights: bool = True,
    callback: Watcher | None = None,
) -> Executable:
    """Make a model, a checkpoint or a program runnable on a backend.

    ``backend`` is a name, a backend, or ``"auto"``, which tries those that are here
    (:mod:`seqmix.choose`) and says what it picked and why in ``report.notes``. ``target`` and
    ``options`` are the backend's own. With ``cache`` the result is kept on disk and found again.
    ``logits_to_keep`` is 0 for the logits of all tokens, or 1 for those of the last token only,
    which is all that generation needs. ``callback(stage, module)`` sees the module after each
    stage, with ``"auto"`` of every backend that is tried.
    Weights that hold NaN are refused by name; with ``check_weights=False`` they are not looked at,
    and nothing is kept on disk.
    Raises CaptureError, IRError (an op that the backend cannot run) or BackendError.
    """
    cache = cache and check_weights
    clock = _Clock()
    program = program_of(source, logits_to_keep)
    clock.lap("capture")
    wanted = dict(options or {})
    look = _Look(program) if check_weights else list

    def make(chosen: Backend) -> Made:
        with _one_thread:
            return _made(program, chosen, target, wanted, cache, callback, clock, look)

    if backend != "auto":
        return _finish(*make(_resolve(backend)))
    made: dict[str, Made] = {}
    look()  # What no backend takes is no reason against one of them.

    def contestant(chosen: Backend) -> Executable:
        made[chosen.name] = make(chosen)
        return made[chosen.name][0]

    asked = {"target": target, **wanted}
    choice = try_backends(program.module, contestant, asked, keep=cache)
    if choice.executable is None:
        contestant(choice.backend)
    executable, module, notes = made[choice.backend.name]
    return _finish(executable, module, [*choice.notes, *notes])


def _made(
    program: Program,
    chosen: Backend,
    target: str | None,
    options: Mapping[str, Any],
    cache: bool,
    callback: Watcher | None,
    clock: _Clock,
    look: Callable[[], list[str]],
) -> Made:
    target = chosen.default_target() if target is None else target
    rules, chosen = hooks.rewrites(chosen.name), chosen.configured(options)
    key = compile_key(program, chosen, target, options, rules) if cache and chosen.cached else None

    def anew() -> Made:
        notes = look()
        legality = BackendLegality(chosen, target)
        module, record = lower(program.module, legality, rules, watch=callback)
        clock.lap("lower")
        executable = chosen.compile(replace(program, module=module), target, options)
        clock.lap("compile")
        _describe(executable, record, clock.seconds)
        return executable, module, notes

    return anew() if key is None else _kept_or_made(key, chosen, program.module, anew)


def _kept_or_made(key: str, chosen: Backend, captured: Module, anew: Callable[[], Made]) -> Made:
    """What the cache has, or what is made ``anew``, by one process while the others wait."""
    found = ["read from the compile cache"]
    if (kept := _from_cache(key, chosen)) is not None:
        return kept, captured, found
    with cache.one_writer(key):
        if (kept := _from_cache(key, chosen)) is not None:
            return kept, captured, found
        made = anew()
        cache.store(key, made[0].save)
    return made


def load(directory: Path | str) -> Executable:
    """Read what ``Executable.save`` wrote; its backend must be installed and available.

    A folder that is replaced meanwhile is read again: what is loaded is of one save.
    """
    folder = Path(directory)
    return read_steadily(folder / MANIFEST, lambda: _loaded(folder))


def _loaded(folder: Path) -> Executable:
    report, _ = read_manifest(folder)
    try:
        chosen = _resolve(report.backend)
    except PluginError as error:
        raise PluginError(
            f"{folder}: compiled for a backend that is missing here: {error}"
        ) from error
    return chosen.load(folder)


def program_of(source: Source, logits_to_keep: int = 0) -> Program:
    """The program of a model or of a checkpoint: captured, with its weights by name."""
    from seqmix.capture import capture_model
    from seqmix.model import Model
    from seqmix.weights import Weights

    if logits_to_keep not in (0, 1) or (logits_to_keep and isinstance(source, Program)):
        raise ConfigError(
            f"logits_to_keep is {logits_to_keep}, expected 0 (all tokens) or 1 (the last), and "
            "a model or a checkpoint: a program has its logits already"
        )
    if isinstance(source, Program):
        return source
    if not isinstance(source, Model):
        if not hasattr(source, "weights") or not hasattr(source, "config"):
            raise ConfigError(
                f"a model, a checkpoint or a program is needed to compile, found {source!r}; "
                "seqmix.resolve(path) reads a checkpoint"
            )
        source = Model.from_checkpoint(source)
    here = source.embed.weight.device.type
    if here == "meta":
        raise ConfigError(
            f"model '{source.config.name}' is on the meta device, which holds no weights; load "
            "them before it is compiled"
        )
    on_cpu = source if here == "cpu" else copy.deepcopy(source).cpu()
    name = _identifier(source.config.name)
    with _one_thread:
        captured = capture_model(on_cpu, name=name, logits_to_keep=logits_to_keep)
    return Program(captured.module, Weights.of_tensors(captured.weights), source.config, source)


class _Look:
    """The look at a program's weights, once for all backends; what is cached needs none."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._notes: list[str] | None = None

    def __call__(self) -> list[str]:
        """Notes; BackendError for NaN."""
        if self._notes is None:
            where = f"model '{self._program.config.name}'"
            self._notes = find_nan(where, self._program.weights)
        return self._notes


class _Clock:
    """Seconds of each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = round(now - self._last, 6)
        self._last = now


def _resolve(backend: str | Backend) -> Backend:
    """The backend that was asked for; BackendError with the reason if it cannot run."""
    if isinstance(backend, Backend):
        chosen = backend
    else:
        chosen = cast(type[Backend], registry.get("backends", backend))()
    available = chosen.probe()
    if not available:
        raise BackendError(f"backend '{chosen.name}' is not available here: {available.reason}")
    return chosen


def _describe(executable: Executable, record: Legalization, seconds: dict[str, float]) -> None:
    """Add to the backend's report what was seen on the way to it."""
    report = executable.report
    report.native = {**record.native, **report.native}
    report.decomposed = {**record.decomposed, **report.decomposed}
    report.seconds = {**seconds, **report.seconds}


def _finish(executable: Executable, module: Module, notes: list[str]) -> Executable:
    executable.report.notes.extend(notes)
    hooks.compiled(module, executable)
    return executable


def _from_cache(key: str, backend: Backend) -> Executable | None:
    """A kept executable; an entry that does not load is dropped, and the model compiled anew."""
    if (folder := cache.fetch(key)) is None:
        return None
    try:
        return backend.load(folder)
    except Exception:  # Whatever is wrong with an entry, compiling again is the remedy.
        cache.remove(key)
        return None


def _identifier(name: str) -> str:
    """A name that the text form accepts: letters, digits, ``_``."""
    text = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return text if text[:1].isalpha() else f"m_{text}"
