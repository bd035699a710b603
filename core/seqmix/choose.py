"""What a backend can run, as the legalizer asks for it, and which one ``"auto"`` means.

In this order: ``SEQMIX_BACKEND``, a plugin's hook, and a trial of every backend that is available
and can run the model. What a trial found is kept beside the compile cache, and holds for the same
graph, machine, versions and number of threads.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from seqmix import cache, hooks, registry
from seqmix.backend import Backend, Executable
from seqmix.errors import BackendError, PluginError, SeqmixError
from seqmix.reading import UnreadableError, parse_json
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Module, Op
from seqmix_ir.passes import explain

__all__ = [
    "BACKENDS_VARIABLE",
    "BACKEND_VARIABLE",
    "BackendLegality",
    "Choice",
    "choose_backend",
    "try_backends",
]

BACKEND_VARIABLE = "SEQMIX_BACKEND"
BACKENDS_VARIABLE = "SEQMIX_AUTO_BACKENDS"

COMPILE_SECONDS = 120.0
"""Once compiling has taken so long, no other backend enters the trial."""

Make: TypeAlias = "Callable[[Backend], Executable]"


@dataclass(frozen=True)
class BackendLegality:
    """What one backend can run on one target."""

    backend: Backend
    target: str

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.backend.name

    def supports(self, op: Op) -> str | None:
        """None, or the reason why the op is not native."""
        return self.backend.supports(op, self.target)

    def prefer(self, op: Op) -> tuple[str, ...]:
        """Styles of decomposition, best first."""
        return self.backend.preferences(op, self.target)


@dataclass
class Choice:
    """What ``"auto"`` means for a module: a backend, why, and what else could have been."""

    backend: Backend
    notes: list[str] = field(default_factory=list)
    executable: Executable | None = None
    """What the trial has compiled already."""


def choose_backend(module: Module) -> tuple[Backend, list[str]]:
    """The backend for ``"auto"`` without a trial, and notes that say why it and not another.

    Of those that can run every op one with a GPU goes before one without, then it goes by name.
    Raises BackendError when there is none.
    """
    found, refused = _candidates(module)
    choice = _asked_for(module, found, refused) or _by_device(found, refused)
    return choice.backend, choice.notes


def try_backends(
    module: Module, make: Make, asked: Mapping[str, Any], *, keep: bool = True
) -> Choice:
    """The backend for ``"auto"`` by trial; ``make`` compiles for one.

    ``asked`` (target, options) is what else the result depends on; with ``keep`` it is remembered.
    Backends that fail to compile or to run are named in the notes with their reason. A program
    that is no model is not tried: see :func:`choose_backend`.
    """
    found, refused = _candidates(module)
    choice = _asked_for(module, found, refused)
    if choice is not None:
        return choice
    if len(found) == 1 or not _is_model(module):
        return _by_device(found, refused)
    trial = _Trial(found, make)
    from seqmix.keys import trial_key

    known = cache.remember("auto", trial_key(module, found, asked), trial.run) if keep else ""
    kept = _kept(known, found)
    name, *notes = json.loads(trial.run()) if kept is None else kept
    when = [] if trial.ran else ["the trial was held before; its result is kept in the cache"]
    return Choice(found[name], [*notes, *when, *refused], trial.executables.get(name))


def _kept(text: str, found: Mapping[str, Backend]) -> list[str] | None:
    """The name of a backend and notes, as the cache has them; None when that is not what it has."""
    try:
        content = parse_json(text)
    except UnreadableError:
        return None
    whole = isinstance(content, list) and all(isinstance(item, str) for item in content)
    return content if whole and content and content[0] in found else None


class _Trial:
    """Every candidate compiled and timed, at most once."""

    def __init__(self, candidates: Mapping[str, Backend], make: Make) -> None:
        self.executables: dict[str, Executable] = {}
        self.ran = False
        self._candidates = candidates
        self._make = make
        self._notes: list[str] = []

    def run(self) -> str:
        """The name of the fastest, and the notes, as JSON. BackendError when none is left."""
        from seqmix.trial import measure

        self.ran = True
        seconds = self._compile_all()
        times = measure(self.executables, self._fail)
        if not times:
            raise BackendError(f"no backend can run this model here: {'; '.join(self._notes)}")
        ranked = sorted(times, key=lambda name: times[name].total)
        first = times[ranked[0]]
        devices = ", ".join(self._candidates[ranked[0]].probe().devices)
        why = f"auto: '{ranked[0]}' on {devices}, the fastest of {len(times)} in a trial"
        shown = [
            f"'{name}': {_ms(t.prefill)} for a prompt of {t.tokens} tokens, {_ms(t.step)} for a "
            f"token after it, {t.total / first.total:.2f} times the fastest for so many tokens of "
            f"both; compiled in {seconds[name]:.1f} s"
            for name, t in ((name, times[name]) for name in ranked)
        ]
        return json.dumps([ranked[0], why, *shown, *self._notes])

    def _compile_all(self) -> dict[str, float]:
        """Compile one after the other; the seconds that each took."""
        seconds: dict[str, float] = {}
        # Those that are not for everyday, such as slow compilers, come last.
        for name in sorted(self._candidates, key=lambda n: (not self._candidates[n].automatic, n)):
            if sum(seconds.values()) > COMPILE_SECONDS:
                self._notes.append(
                    f"not '{name}': compiling the others took {sum(seconds.values()):.0f} s, "
                    f"the trial allows {COMPILE_SECONDS:.0f}"
                )
                continue
            started = time.perf_counter()
            try:
                self.executables[name] = self._make(self._candidates[name])
            except Exception as error:  # A backend of a plugin: what it raises is its result.
                self._fail(name, error)
            seconds[name] = time.perf_counter() - started
        return seconds

    def _fail(self, name: str, error: Exception) -> None:
        kind = "" if isinstance(error, SeqmixError | IRError) else f"{type(error).__name__}: "
        said = (str(error).splitlines() or [""])[0]
        self._notes.append(f"not '{name}': failed in the trial: {kind}{said}")
        self.executables.pop(name, None)


def _asked_for(module: Module, found: dict[str, Backend], refused: list[str]) -> Choice | None:
    """The backend that the environment or a plugin names."""
    wanted = os.environ.get(BACKEND_VARIABLE, "")
    if wanted not in ("", "auto"):
        backend = cast(type[Backend], registry.get("backends", wanted))()
        if not (available := backend.probe()):
            raise BackendError(
                f"backend '{wanted}', which {BACKEND_VARIABLE} asks for, is not available here: "
                f"{available.reason}"
            )
        return Choice(backend, [f"auto: '{wanted}', asked for by {BACKEND_VARIABLE}"])
    if not found:
        reasons = "; ".join(refused) or "none is installed that is chosen by itself"
        raise BackendError(
            f"no backend can run this model here: {reasons}; install another, or ask for one by "
            "its name"
        )
    choice = hooks.choose_backend(module, list(found))
    if choice is None:
        return None
    name, plugin = choice
    return Choice(found[name], [f"auto: '{name}', chosen by {plugin}", *refused])


def _by_device(found: dict[str, Backend], refused: list[str]) -> Choice:
    name = min(found, key=lambda n: (not _has_gpu(found[n]), n))
    why = f"auto: '{name}' on {', '.join(found[name].probe().devices)}; could be {', '.join(found)}"
    return Choice(found[name], [why, *refused])


def _candidates(module: Module) -> tuple[dict[str, Backend], list[str]]:
    """Backends that can run the module, by name, and why the others cannot."""
    found: dict[str, Backend] = {}
    refused: list[str] = []
    wanted = _wanted()
    for name in registry.names("backends") if wanted is None else wanted:
        try:
            backend = cast(type[Backend], registry.get("backends", name))()
        except PluginError as error:
            refused.append(f"'{name}' is not usable: {error}")
            continue
        if wanted is None and not backend.automatic:
            if backend.probe() and name != "reference":
                refused.append(
                    f"not '{name}': it is taken when it is asked for, or listed in "
                    f"{BACKENDS_VARIABLE}"
                )
            continue
        if (reason := _reason_against(backend, module)) is None:
            found[name] = backend
        else:
            refused.append(f"not '{name}': {reason}")
    return found, refused


def _wanted() -> list[str] | None:
    """The backends that the environment lets ``"auto"`` take; None for those that offer it."""
    names = [name.strip() for name in os.environ.get(BACKENDS_VARIABLE, "").split(",")]
    return [name for name in names if name] or None


def _reason_against(backend: Backend, module: Module) -> str | None:
    available = backend.probe()
    if not available:
        return available.reason
    record = explain(module, BackendLegality(backend, backend.default_target()))
    if record.impossible:
        first = record.impossible[0]
        return f"cannot run '{first.op}' at {first.loc}: {first.reason}"
    return None


def _has_gpu(backend: Backend) -> bool:
    return any(device.split(":")[0] in ("cuda", "hip") for device in backend.probe().devices)


def _is_model(module: Module) -> bool:
    """Whether the module reads tokens, as the trial does."""
    names = {name for graph in module.graphs for name in graph.inputs}
    return {"input_ids", "positions"} <= names and [g.name for g in module.graphs] == ["forward"]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
