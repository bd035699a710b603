"""Each loader against edited files; the cases that were found once are replayed."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.edits import Edit, Files, edits
from tests.fuzz.target import CASES, Target, attempt, read_case
from tests.fuzz.targets import NAMES, target

pytestmark = pytest.mark.full

CHOICE = st.integers(0, 3)
QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def found(name: str) -> Target:
    made = target(name)
    if isinstance(made, str):
        pytest.skip(made)
    return made


@lru_cache
def valid(name: str) -> Files:
    return found(name).files()


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("tvm", "tvm_load")])
def test_what_is_valid_is_taken(name: str) -> None:
    assert attempt(found(name), valid(name))


@pytest.mark.parametrize("name", [n for n in NAMES if n != "tvm_load"])
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=QUIET)
@given(changes=edits(), choice=CHOICE)
def test_a_few_edited_files(name: str, changes: list[Edit], choice: int) -> None:
    attempt(found(name), found(name).changed(valid(name), changes, choice))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=300, deadline=None, suppress_health_check=QUIET)
@given(changes=edits(), choice=CHOICE)
def test_many_edited_files(name: str, changes: list[Edit], choice: int) -> None:
    attempt(found(name), found(name).changed(valid(name), changes, choice))


@pytest.mark.parametrize(
    "path", sorted(CASES.glob("*/*.json")), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_what_was_found_once(path: Path) -> None:
    assert valid(path.parent.name)
    attempt(found(path.parent.name), read_case(path))
