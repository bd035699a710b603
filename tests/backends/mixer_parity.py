"""One mixer on one backend against float64: what the conformance tests of the backends share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch

from seqmix import registry
from seqmix.config import BlockConfig, Kind, ModelConfig, build_config
from seqmix.dtypes import torch_dtype
from seqmix.mixer import SequenceMixer
from seqmix.testing.parity import check_parity
from seqmix.testing.report import CheckReport

__all__ = ["check_mixer_on", "examples"]

WIDTH = 24


def examples(name: str) -> list[dict[str, Any]]:
    """The settings that a mixer is to be checked with."""
    cls = cast(type[SequenceMixer], registry.get("mixers", name))
    return list(cls.examples())


def check_mixer_on(backend: str, name: str, options: Mapping[str, Any], dtype: str) -> None:
    """A mixer captured alone and compiled: steps, prefill, past, padding, against float64."""
    cls = cast(type[SequenceMixer], registry.get("mixers", name))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        mixer = cls(build_config(cls.Config, dict(options), name), WIDTH)
        for parameter in mixer.parameters():
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    config = ModelConfig(
        name=name,
        vocab_size=1,
        width=WIDTH,
        context_length=1024,
        blocks=[BlockConfig(steps=[Kind(kind=name, **options)])],
    )
    report = CheckReport(f"mixer '{name}' {options}")
    built = mixer.to(torch_dtype(dtype)).eval()
    report.rows += check_parity(built, config, dtype, [backend], report.notes)
    report.raise_for_failures()
    assert not report.notes
    assert any(row.where.startswith(backend) for row in report.rows)
