"""From the MODEL of the command line to a checkpoint, a model, a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from seqmix import registry
from seqmix.progress import progress

if TYPE_CHECKING:
    from seqmix.backend import Backend, Executable, Program
    from seqmix.checkpoint import Checkpoint
    from seqmix.model import Model

__all__ = [
    "check_backend_name",
    "compile_model",
    "load_checkpoint",
    "load_model",
    "pick_backend",
]


def load_checkpoint(source: str, rope: str | None) -> Checkpoint:
    """The checkpoint, its context extended when asked for."""
    from seqmix.checkpoint import resolve
    from seqmix.extend import extend

    with progress(f"reading {source}"):
        checkpoint = resolve(source)
        return (
            checkpoint if rope is None else checkpoint.with_config(extend(checkpoint.config, rope))
        )


def load_model(checkpoint: Checkpoint) -> Model:
    """The torch model, in eval mode."""
    from seqmix.model import Model

    with progress("building the model"):
        return Model.from_checkpoint(checkpoint).eval()


def compile_model(
    model: Model,
    backend: str,
    options: Mapping[str, Any] | None = None,
    logits_to_keep: int = 0,
) -> Executable:
    """The model on a backend."""
    from seqmix.compile import compile

    with progress(f"compiling for {backend}"):
        return compile(model, backend, options=options, logits_to_keep=logits_to_keep)


def check_backend_name(name: str) -> None:
    """PluginError for a name that no backend has, before anything slow begins."""
    if name != "auto":
        registry.get("backends", name)


def pick_backend(name: str, program: Program) -> tuple[Backend, list[str]]:
    """A backend by name, available here or not; for ``auto`` the one that is taken, and why."""
    from seqmix.compile import compile

    notes: list[str] = []
    if name == "auto":
        with progress("trying backends"):
            report = compile(program, "auto").report
        name, notes = report.backend, report.notes
    return cast("type[Backend]", registry.get("backends", name))(), notes
