"""check_mixer: the laws in torch, then the same mixer captured and run on every backend."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from seqmix import registry
from seqmix.config import BlockConfig, Kind, ModelConfig, build_config
from seqmix.dtypes import torch_dtype
from seqmix.errors import ConfigError, did_you_mean
from seqmix.mixer import SequenceMixer
from seqmix.testing.laws import check_laws
from seqmix.testing.parity import check_parity
from seqmix.testing.poison import poisoned
from seqmix.testing.report import CheckReport

__all__ = ["PROFILES", "check_mixer"]

PROFILES: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "quick": ((1, 2, 9), ("f32",)),
    "full": ((1, 2, 9, 63, 65), ("f32", "bf16", "f16")),
}
"""Lengths at which the laws are tried, and dtypes in which the backends are."""

_WIDTH = 24


def check_mixer(
    mixer: str | type[SequenceMixer] | SequenceMixer,
    options: Mapping[str, Any] | None = None,
    *,
    width: int = _WIDTH,
    profile: str = "quick",
    backends: Sequence[str] | None = None,
) -> CheckReport:
    """Check a mixer: laws, gradients, capture, text, and every backend.

    A mixer is given by name, as a class, or as an instance of the given ``width`` (which keeps its
    weights). Without ``options`` every one of a class's ``examples()`` is checked. ``backends``
    defaults to all that are installed and available; "torch" stands for the mixer itself. Raises
    ConfigError for an unknown profile or options that do not fit; what the mixer does wrong is in
    the report.
    """
    if profile not in PROFILES:
        raise ConfigError(
            f"profile {profile!r} is unknown{did_you_mean(profile, PROFILES)}; "
            f"known: {', '.join(PROFILES)}"
        )
    lengths, dtypes = PROFILES[profile]
    subjects = list(_subjects(mixer, options, width))
    report = CheckReport(f"mixer '{subjects[0].config.name}'")
    for subject in subjects:
        judged = subject.build("f64")
        with poisoned(judged.exact_causality):
            rows = [*check_laws(judged, width, lengths)]
        for dtype in dtypes:
            built = subject.build(dtype)
            rows += check_parity(built, subject.config, dtype, backends, report.notes)
        report.rows += [replace(row, where=f"{subject.label}{row.where}") for row in rows]
    # Every example has the same to say of a backend that is missing.
    report.notes = list(dict.fromkeys(report.notes))
    return report


def _subjects(
    mixer: str | type[SequenceMixer] | SequenceMixer,
    options: Mapping[str, Any] | None,
    width: int,
) -> Iterator[_Subject]:
    """What is to be checked, once per set of options."""
    if isinstance(mixer, SequenceMixer):
        if options is not None:
            raise ConfigError("options are for a mixer's name or class, this one is built already")
        yield _Subject(type(mixer).__name__, {}, width, mixer)
        return
    name = mixer if isinstance(mixer, str) else mixer.__name__
    found = registry.get("mixers", mixer) if isinstance(mixer, str) else mixer
    cls = cast(type[SequenceMixer], found)
    examples = cls.examples() if options is None else [dict(options)]
    if not examples:
        raise ConfigError(f"mixer '{name}': examples() is empty, so there is nothing to check")
    for example in examples:
        yield _Subject(name, example, width, _with_odd_weights(cls, name, example, width))


class _Subject:
    """A mixer, and the configuration that stands for its model."""

    def __init__(
        self, name: str, options: dict[str, Any], width: int, mixer: SequenceMixer
    ) -> None:
        self.label = ",".join(f"{key}={value}" for key, value in options.items())
        self.label += " " if options else ""
        step: Kind | list[Kind] = Kind(kind=name, **options)
        self.config = ModelConfig(
            name=name,
            vocab_size=1,
            width=width,
            context_length=1024,
            blocks=[BlockConfig(steps=[step])],
        )
        self._mixer = mixer

    def build(self, dtype: str) -> SequenceMixer:
        """A copy in a dtype."""
        return copy.deepcopy(self._mixer).to(torch_dtype(dtype)).eval()


def _with_odd_weights(
    cls: type[SequenceMixer], name: str, options: dict[str, Any], width: int
) -> SequenceMixer:
    """The mixer with weights that are the same every time."""
    checked = build_config(cls.Config, options, f"mixer '{name}'")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        mixer = cls(checked, width)
    for parameter in mixer.parameters():
        _stir(parameter)
    return mixer


def _stir(parameter: nn.Parameter) -> None:
    """Move weights off their initial zeros and ones, so that each of them matters."""
    generator = torch.Generator().manual_seed(parameter.numel())
    noise = torch.randn(parameter.shape, generator=generator)
    with torch.no_grad():
        parameter.add_(0.3 * noise.to(parameter.dtype))
