"""What does not fit is refused on every backend in the same words, and leaves nothing behind."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from tests.backends import bad_inputs_page
from tests.backends.bad_input_subject import BACKENDS, Subject, subject_on, unchanged
from tests.backends.bad_inputs import Case, cases
from torch import Tensor

from seqmix import registry
from seqmix.errors import IRError, SeqmixError

NEAR: dict[str, float] = {"rtol": 2e-5, "atol": 2e-4}
CASES = {f"{case.group}: {case.title}": case for case in cases()}
# The interpreters are slow, and compiling with TVM takes half a minute.
QUICK = {"torch", "onnxruntime"}
ON = [b if b in QUICK else pytest.param(b, marks=pytest.mark.full) for b in BACKENDS]
RUNS = [
    pytest.param(name, marks=pytest.mark.full) if case.group.startswith("Weights") else name
    for name, case in CASES.items()
    if not case.says
]


def subject(backend: str) -> Subject:
    available = registry.get("backends", backend)().probe()
    if not available:
        pytest.skip(f"{backend}: {available.reason}")
    return subject_on(backend)


@cache
def said_by(backend: str, name: str) -> tuple[str, str]:
    """Class and words of the error."""
    with pytest.raises((SeqmixError, IRError)) as error:
        CASES[name].call(subject(backend))
    return type(error.value).__name__, str(error.value)


def tensors_of(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    # Backends give their results in orders of their own.
    values = [result[name] for name in sorted(result)] if isinstance(result, dict) else result
    return [tensor for value in values for tensor in tensors_of(value)]


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.says])
@pytest.mark.parametrize("backend", ON)
def test_refused_in_the_same_words_and_nothing_left_behind(backend: str, name: str) -> None:
    case, here = CASES[name], subject(backend)
    if backend not in case.only:
        case.call(here)
        return
    with unchanged(here):
        kind, words = said_by(backend, name)
    assert case.says in words
    if "reference" in case.only:
        assert (kind, words) == said_by("reference", name)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("backend", ON)
def test_what_looks_odd_and_is_right_runs(backend: str, name: str) -> None:
    case = CASES[name]
    with unchanged(here := subject(backend)):
        found = case.call(here)
    if isinstance(found, list) and all(isinstance(one, str) for one in found):
        assert found == case.call(subject("reference"))
        return
    wanted = tensors_of(case.call(subject("reference")))
    torch.testing.assert_close(tensors_of(found), wanted, **NEAR)


@pytest.mark.parametrize("backend", ON)
def test_a_refused_step_leaves_the_states_as_they_were(backend: str) -> None:
    here = subject(backend)
    ids, positions = (t[:, :1] for t in here.tokens())
    wanted = here.executable.steps(here.states())
    steps = here.executable.steps(here.states())
    for _ in range(2):
        with pytest.raises(SeqmixError, match="found 53"):
            steps(ids * 0 + 53, positions)
        kept = steps.states()
        expected = wanted(ids, positions).clone()
        assert torch.equal(steps(ids, positions), expected)
        positions = positions + 1
        with pytest.raises(SeqmixError, match="found i64"):
            steps(ids[0], positions)
        again = steps.states()
        assert all(len(again[name]) == len(tensor) for name, tensor in kept.items())
        torch.testing.assert_close(again, wanted.states(), rtol=0, atol=0)


def test_long_lists_of_problems_are_cut() -> None:
    here = subject("reference")
    with pytest.raises(SeqmixError, match=r"; and 3 more$"):
        here.executable.run("forward", {f"x{i}": torch.zeros(1) for i in range(2)})


def test_the_page_is_what_the_backends_say() -> None:
    words = {name: said_by(_first(case), name)[1] for name, case in CASES.items() if case.says}
    page = bad_inputs_page.PAGE.read_text(encoding="utf-8")
    assert page == bad_inputs_page.written(words), "run python -m tests.backends.bad_inputs_page"


def _first(case: Case) -> str:
    return next(backend for backend in BACKENDS if backend in case.only)
