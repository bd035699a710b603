"""A small compiled model on every backend, and inputs that are right: what bad ones are made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from tests.core import tiny
from torch import Tensor

import seqmix
from seqmix.backend import Program
from seqmix.compile import program_of
from seqmix.model import Model, flatten_states

os.environ["TRITON_INTERPRET"] = "1"  # Before anything of Triton is imported.

BACKENDS = ("reference", "torch", "onnxruntime", "tvm", "triton")
LEARNED = 16
KINDS: list[dict[str, Any]] = [
    tiny.ATTENTION,
    tiny.WINDOW,
    {"kind": "linear_attention", "heads": 2},
]


@dataclass(frozen=True)
class Subject:
    """A compiled model on one backend, and inputs for it that are right."""

    executable: Any  # An Executable; what is passed to it here is not always what it asks for.
    backend: str

    def inputs(self) -> dict[str, Tensor]:
        """Two rows of three tokens after two, by name; nobody else's."""
        ids, positions = tiny.tokens(2, 5)
        new = {"input_ids": ids[:, 2:].clone(), "positions": positions[:, 2:].clone()}
        return {**new, **self.states()}

    def states(self) -> dict[str, Tensor]:
        """The states after two tokens."""
        return {name: tensor.clone() for name, tensor in _states().items()}

    def tokens(self) -> tuple[Tensor, Tensor]:
        """Ids and positions of the inputs."""
        given = self.inputs()
        return given["input_ids"], given["positions"]

    def run(self, changes: Mapping[str, Any]) -> Any:
        """The logits, with some inputs made of what they should be, or left out."""
        given: dict[str, Any] = self.inputs()
        for name, change in changes.items():
            given[name] = None if change is None else change(given.get(name))
        return self.executable.run("forward", {k: v for k, v in given.items() if v is not None})

    def run_each(self, change: Callable[[Tensor], Tensor]) -> Any:
        """The results, with every input changed in the same way."""
        return self.run(dict.fromkeys(self.inputs(), change))

    def after_a_step(self, input_ids: Any, positions: Any) -> Any:
        """A second step, after one that is right."""
        ids, places = self.tokens()
        steps = self.executable.steps(self.states())
        steps(ids[:, :1], places[:, :1])
        return steps(input_ids, positions)


def shape_of(steps: Sequence[Any]) -> dict[str, Any]:
    position = {"kind": "learned", "max_positions": LEARNED}
    return {"blocks": [{"steps": list(steps)}], "position": position, "head_dim": None}


def make_model() -> Model:
    return tiny.model(**shape_of(KINDS))


@cache
def program() -> Program:
    """The model that all cases are about: a table of positions, and three kinds of states."""
    return program_of(make_model())


@cache
def _states() -> dict[str, Tensor]:
    model = program().model
    assert isinstance(model, Model)
    ids, positions = tiny.tokens(2, 5)
    return flatten_states(model, model(ids[:, :2], positions[:, :2])[1])


@cache
def subject_on(backend: str) -> Subject:
    """The model on a backend, compiled once."""
    return Subject(seqmix.compile(program(), backend, cache=False), backend)


@cache
def _right(backend: str) -> dict[str, Tensor]:
    """What right inputs give, before any wrong ones."""
    subject = subject_on(backend)
    results: dict[str, Tensor] = subject.executable.run("forward", subject.inputs())
    return results


@contextmanager
def unchanged(subject: Subject) -> Iterator[None]:
    """What is inside leaves nothing behind: right inputs give the same bits as at first."""
    before = _right(subject.backend)
    yield
    after = subject.executable.run("forward", subject.inputs())
    assert all(torch.equal(before[name], after[name]) for name in before)
