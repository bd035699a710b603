"""Attention, a scan cell and a short convolution keep the four laws and run on every backend."""

from __future__ import annotations

import pytest
from tests.mixers import GatedCell, ShortConv

from seqmix import registry
from seqmix.mixer import SequenceMixer
from seqmix.testing import check_mixer
from seqmix.testing.parity import LENGTHS

SUBJECTS: dict[str, str | type[SequenceMixer]] = {
    "attention": "attention",
    "gated_cell": GatedCell,
    "short_conv": ShortConv,
}
OPTIONS = {"attention": {"heads": 6, "head_dim": 7, "kv_heads": 3, "window": 5, "qk_norm": True}}
BACKENDS = ("torch", "reference", "onnxruntime")


@pytest.mark.parametrize("name", SUBJECTS)
def test_laws_and_backends(name: str) -> None:
    pytest.importorskip("onnxruntime")
    report = check_mixer(SUBJECTS[name], OPTIONS.get(name), backends=BACKENDS)
    report.raise_for_failures()
    for backend in BACKENDS:
        details = {row.detail for row in report.rows if f"{backend} f32" in row.where}
        wanted = {f"B={batch} S={length} P={past}" for batch, length, past in LENGTHS}
        assert len(wanted) == 5
        assert wanted <= details, f"{backend} ran at {details}"


@pytest.mark.full
@pytest.mark.parametrize("name", SUBJECTS)
def test_laws_at_full_length(name: str) -> None:
    check_mixer(SUBJECTS[name], profile="full", backends=("reference",)).raise_for_failures()


@pytest.mark.parametrize("name", registry.names("mixers"))
def test_every_registered_mixer(name: str) -> None:
    first = registry.get("mixers", name).examples()[0]
    report = check_mixer(name, first, backends=BACKENDS)
    report.raise_for_failures()
    assert not report.notes


@pytest.mark.full
@pytest.mark.parametrize("name", registry.names("mixers"))
def test_every_example_of_every_mixer(name: str) -> None:
    report = check_mixer(name)
    report.raise_for_failures()
    assert all("is not available here" in note for note in report.notes)
