"""What the command line calls a contestant, and how it becomes one.

``onnxruntime`` is a backend, ``tvm:weights=int8`` one with options, ``transformers`` a peer by the
name that it is registered under (``seqmix.peers``), ``package.module:function`` one that is not.
A peer is a callable of a checkpoint and a number of threads that returns a
:class:`~seqmix.bench.contestant.Contestant`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from seqmix import registry
from seqmix.bench.contestant import Contestant, ExecutableContestant
from seqmix.checkpoint import Checkpoint
from seqmix.errors import ConfigError, PluginError, SeqmixError
from seqmix.reading import UnreadableError, parse_json

if TYPE_CHECKING:
    from seqmix.backend import Backend
    from seqmix.model import Model

__all__ = ["Maker", "Spec", "check_specs", "compile_options", "make", "parse_backend", "parse_peer"]

Maker: TypeAlias = Callable[[Checkpoint, int], Contestant]


@dataclass(frozen=True)
class Spec:
    """One contestant: ``kind`` is backend or peer; ``name`` is what it is called everywhere."""

    name: str
    kind: str
    target: str
    options: dict[str, Any] = field(default_factory=dict)


def parse_backend(text: str) -> Spec:
    """``NAME[:KEY=VALUE..]``; ConfigError for options that do not read so."""
    name, *pairs = text.split(":")
    options: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key or not value:
            raise ConfigError(
                f"backend '{text}': '{pair}' should read KEY=VALUE, such as tvm:weights=int8"
            )
        options[key] = _value(value)
    return Spec(text, "backend", name, options)


def parse_peer(text: str) -> Spec:
    """A registered name or ``module:function``."""
    return Spec(text, "peer", text)


def check_specs(specs: Sequence[Spec]) -> None:
    """Raise for none, for a name twice, and for one that nobody has; imports nothing slow."""
    if not specs:
        raise ConfigError("nobody to measure; name --backends, --peers, or both")
    for spec in specs:
        if sum(other.name == spec.name for other in specs) > 1:
            raise ConfigError(f"contestant '{spec.name}' is named twice; name it once")
        if spec.kind == "backend":
            registry.get("backends", spec.target)
        elif ":" not in spec.target and spec.target not in registry.names("peers"):
            known = ", ".join(registry.names("peers")) or "none"
            raise PluginError(
                f"no peer is called '{spec.target}'; installed: {known}; one that is not "
                "registered is given as module:function"
            )


def make(spec: Spec, source: Checkpoint | Model, threads: int) -> Contestant:
    """The contestant, of a model for a backend, of a checkpoint for a peer, ready to read.

    Raises whatever making it raises.
    """
    from seqmix.compile import compile

    if spec.kind == "peer":
        return _peer(spec.target)(cast(Checkpoint, source), threads)
    options = compile_options(spec, threads)
    executable = compile(source, spec.target, options=options, logits_to_keep=1, cache=False)
    return ExecutableContestant(executable)


def compile_options(spec: Spec, threads: int) -> dict[str, Any]:
    """The options of a backend, so many threads among them where it wants to be told."""
    backend = cast("type[Backend]", registry.get("backends", spec.target))()
    return {**backend.thread_options(threads), **spec.options}


def _peer(target: str) -> Maker:
    """The callable behind a name or a path; PluginError when there is none."""
    if ":" not in target:
        return cast(Maker, registry.get("peers", target))
    module, _, name = target.partition(":")
    try:
        return cast(Maker, getattr(importlib.import_module(module), name))
    except SeqmixError:
        raise
    except (ImportError, AttributeError) as error:
        raise PluginError(f"peer '{target}' cannot be imported: {error}") from error


def _value(text: str) -> Any:
    try:
        return parse_json(text)
    except UnreadableError:
        return text
