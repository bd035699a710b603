"""``seqmix check``: a mixer or an op by name, everything that is registered, or a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from seqmix import registry
from seqmix.cli.loading import check_backend_name, compile_model, load_checkpoint, load_model
from seqmix.errors import (
    BackendError,
    CheckpointError,
    ConfigError,
    IRError,
    PluginError,
    did_you_mean,
)
from seqmix.progress import progress

if TYPE_CHECKING:
    from seqmix.backend import Executable
    from seqmix.checkpoint import Checkpoint
    from seqmix.model import Model
    from seqmix.testing import CheckReport, Overview

__all__ = ["check_subject"]


def check_subject(
    subject: str,
    backends: list[str] | None,
    full: bool,
    as_json: bool,
    weights: str | None = None,
) -> int:
    """Print the report; 0 if all is well, else 1.

    ``subject`` is the name of a mixer, else of an op, else of a position encoding, else "all", else
    a model; ``op:NAME`` and ``position:NAME`` say which of several things of one name is meant.
    ``weights`` is a smaller type for the weights of a model, on backends that are named.
    """
    if weights is not None:
        _check_weights(weights, backends)
    for name in backends or ():
        check_backend_name(name)
    if weights is None:
        report = _report(subject, backends, full)
    else:
        report = _check_model(_checkpoint(subject), backends, full, weights)
    if as_json:
        print(report.to_json())
        return 0 if report.ok else 1
    console = Console()
    console.print(report.table())
    for note in report.notes:
        console.print(note, style="yellow", markup=False)
    return 0 if report.ok else 1


def _report(subject: str, backends: list[str] | None, full: bool) -> CheckReport | Overview:
    from seqmix.testing import check_all, check_mixer, check_op, check_position

    profile = "full" if full else "quick"
    kind, _, name = subject.rpartition(":")
    if kind == "position":
        with progress(f"checking position encoding {name}"):
            return check_position(name, profile=profile, backends=backends)
    if kind != "op" and subject in registry.names("mixers"):
        with progress(f"checking mixer {subject}"):
            return check_mixer(subject, profile=profile, backends=backends)
    if kind == "op" or subject in registry.op_table().names():
        with progress(f"checking op {name}"):
            return check_op(name, profile, backends)
    if subject in registry.names("positions"):
        return _report(f"position:{subject}", backends, full)
    if subject == "all":
        with progress("checking every mixer and op"):
            return check_all(profile, backends)
    return _check_model(_checkpoint(subject), backends, full)


def _check_weights(weights: str, backends: list[str] | None) -> None:
    """ConfigError before a model is read."""
    from seqmix.testing.tolerances import WEIGHT_TOLERANCES

    if weights not in WEIGHT_TOLERANCES or not backends:
        raise ConfigError(
            f"--weights should be one of {', '.join(WEIGHT_TOLERANCES)}, with --backend for a "
            f"backend that has such weights, found {weights!r} and {backends or 'no backend'}"
        )


def _checkpoint(subject: str) -> Checkpoint:
    """The model to check; the error for none names mixers and ops that are near as well."""
    try:
        return load_checkpoint(subject, None)
    except CheckpointError as error:
        known = {
            "mixer": registry.names("mixers"),
            "op": registry.op_table().names(),
            "position encoding": registry.names("positions"),
        }
        for kind, names in known.items():
            if near := did_you_mean(subject, names):
                text = f"no {kind} '{subject}'{near}; and no model: {error}"
                raise CheckpointError(text) from error
        raise


def _check_model(
    checkpoint: Checkpoint, backends: list[str] | None, full: bool, weights: str | None = None
) -> CheckReport:
    """Every backend against the float64 interpreter, which has the model's own weights."""
    from seqmix.compile import compile, program_of
    from seqmix.testing import check_model
    from seqmix.testing.tolerances import WEIGHT_TOLERANCES

    model = load_model(checkpoint)
    with progress("capturing"):
        program = program_of(model)
        judge = compile(program, "reference", options={"judge": True}, cache=False)
    executables, notes = _compile_all(model, backends)
    smaller = _with_weights(model, backends or (), weights)
    executables |= smaller
    notes += [note for executable in smaller.values() for note in executable.report.notes]
    with progress("running every backend and the float64 interpreter"):
        lengths = (1, 7, 65, 200) if full else (1, 7, 65)
        allowed = {name: WEIGHT_TOLERANCES[str(weights)] for name in smaller}
        report = check_model(model, executables, lengths, judge=judge, tolerances=allowed)
    report.notes += notes
    return report


def _with_weights(
    model: Model, backends: Sequence[str], weights: str | None
) -> dict[str, Executable]:
    """The model with smaller weights on backends, by a name that says so."""
    if weights is None:
        return {}
    options = {"weights": weights}
    return {f"{name}, weights {weights}": compile_model(model, name, options) for name in backends}


def _compile_all(
    model: Model, backends: list[str] | None
) -> tuple[dict[str, Executable], list[str]]:
    """The model on every backend, and why it is not on some; those asked for must work."""
    executables, notes = {}, []
    # The torch model itself is always compared.
    for name in backends or [n for n in registry.names("backends") if n != "torch"]:
        try:
            executables[name] = compile_model(model, name)
        except (BackendError, IRError, PluginError) as error:
            if backends:
                raise
            notes.append(f"backend '{name}' was not checked: {error}")
    return executables, notes
