"""The temperature sweep: its fit, its lowest points, and what it refuses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plugins import longcontext_cases as cases

from seqmix.errors import ConfigError
from seqmix_longcontext.methods import parse_method, parse_methods
from seqmix_longcontext.perplexity import measure_perplexity
from seqmix_longcontext.plan import Plan
from seqmix_longcontext.plots import plot_temperature
from seqmix_longcontext.subject import Subject
from seqmix_longcontext.temperature import (
    best_value,
    fit_coefficient,
    measure_temperature,
    scale_of,
)
from seqmix_longcontext.windows import cut_documents

DOCUMENTS = cut_documents("text", cases.ids(100), 2, 48)


def sweep(methods: str, values: list[float], out: Path, **more: Any) -> Any:
    subject = Subject.of(cases.model())
    found = parse_methods(methods, subject.checkpoint.config)
    return measure_temperature(subject, found, values, DOCUMENTS, [48] * len(found), out, **more)


def test_the_lowest_point_of_a_parabola() -> None:
    values = [1.3, 0.9, 1.0, 1.1, 1.2]  # in any order
    found, inside = best_value(values, [(v - 1.13) ** 2 + 5 for v in values])
    assert found == pytest.approx(1.13)
    assert inside


def test_unequal_steps_and_flat_bottoms() -> None:
    values = [0.9, 1.0, 1.25, 1.3]
    assert best_value(values, [(v - 1.1) ** 2 for v in values])[0] == pytest.approx(1.1)
    assert best_value([1.0, 1.1, 1.2], [1.0, 1.0, 1.0]) == (1.0, False)


@pytest.mark.parametrize(("losses", "expected"), [([1, 2, 3], 1.0), ([3, 2, 1], 1.2)])
def test_a_lowest_point_at_the_edge_says_so(losses: list, expected: float) -> None:
    assert best_value([1.0, 1.1, 1.2], losses) == (expected, False)


def test_the_fit_recovers_its_coefficient() -> None:
    points = [(s, 0.07 * math.log(s) + 1) for s in (2, 4, 8)]
    assert fit_coefficient(points) == pytest.approx(0.07)
    assert fit_coefficient([(1.0, 1.2), *points]) == pytest.approx(0.07)
    assert fit_coefficient([(1.0, 1.2)]) is None


@pytest.mark.full
def test_the_value_is_the_attention_factor(tmp_path: Path) -> None:
    """At 0.1 ln(s) + 1 the sweep is YaRN, at 1 it is NTK-by-parts."""
    value = 0.1 * math.log(4) + 1
    found = sweep("yarn:4", [1.0, value, 1.3], tmp_path, segments=1)
    by_value = {row["value"]: row["perplexity"] for row in found.rows}
    subject = Subject.of(cases.model())
    methods = parse_methods("ntk-by-parts:4,yarn:4", subject.checkpoint.config)
    plain = measure_perplexity(subject, methods, Plan(DOCUMENTS, [48]), tmp_path / "plain").rows
    assert by_value[1.0] == pytest.approx(plain[0]["perplexity"], rel=1e-6)
    assert by_value[value] == pytest.approx(plain[1]["perplexity"], rel=1e-6)
    assert len(set(by_value.values())) == 3


@pytest.mark.full
def test_segments_and_tables(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = sweep("yarn:2,yarn:4", [1.0, 1.1, 1.2], tmp_path, segments=4)
    assert [row["segment"] for row in found.rows[:5]] == ["all", "0", "1", "2", "3"]
    own = [row for row in found.rows if row["method"] == "yarn:2" and row["value"] == 1.1]
    mean = np.mean([math.log(row["perplexity"]) for row in own[1:]])
    assert math.exp(mean) == pytest.approx(own[0]["perplexity"], rel=0.02)
    assert [(row["scale"], row["paper"]) for row in found.best] == [
        (2.0, pytest.approx(1.0693, abs=1e-4)), (4.0, pytest.approx(1.1386, abs=1e-4)),
    ]  # fmt: skip
    assert found.coefficient is not None
    assert len((tmp_path / "temperature.csv").read_text().splitlines()) == 1 + 2 * 3 * 5
    assert len((tmp_path / "best.csv").read_text().splitlines()) == 3
    plot_temperature(found.rows, found.best, found.coefficient, tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("none", "'none' has no fixed factor and attention factor to sweep"),
        ("ntk:2", "'ntk:2' has no fixed factor"),
        ("dynamic-yarn", "'dynamic-yarn' has no fixed factor"),
        ("yarn:2+attention_factor=1", "sets the factor that the sweep varies"),
    ],
)
def test_encodings_without_a_temperature(method: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scale_of(Subject.of(cases.model()), parse_method(method))
    assert expected in str(caught.value)


@pytest.mark.parametrize("values", [[], [1.0, 1.0], [0.0, 1.0]])
def test_values_that_make_no_sense(values: list, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="values of 1/sqrt"):
        sweep("yarn:2", values, tmp_path)
