"""Ways of calling a compiled model, right or wrong, for the list of bad inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tests.backends.bad_input_subject import KINDS, Subject, make_model, shape_of
from tests.core import tiny
from torch import Tensor

import seqmix
from seqmix.backend import Executable
from seqmix.generate import generate
from seqmix.model import Model, initial_states


def run_with(changes: Mapping[str, Any]) -> Callable[[Subject], Any]:
    return lambda subject: subject.run(changes)


def each(change: Callable[[Tensor], Tensor]) -> Callable[[Subject], Any]:
    return lambda subject: subject.run_each(change)


def with_number(number: int) -> Callable[[Tensor], Tensor]:
    """A change of one number in the second row."""

    def change(tensor: Tensor) -> Tensor:
        tensor[1, 1] = number
        return tensor

    return change


def unaligned(tensor: Tensor) -> Tensor:
    room = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)
    return room[1:].view(tensor.shape).copy_(tensor)


def with_states_of(steps: Sequence[Any]) -> Callable[[Subject], Any]:
    other = tiny.config(**shape_of(steps))
    return lambda subject: subject.executable(*subject.tokens(), initial_states(other, 2))


def step_without(name: str) -> Callable[[Subject], Any]:
    def call(subject: Subject) -> Any:
        left = {key: tensor for key, tensor in subject.states().items() if key != name}
        return subject.executable.steps(left)(*(t[:, :1] for t in subject.tokens()))

    return call


def second_step(input_ids: Any, positions: Any) -> Callable[[Subject], Any]:
    return lambda subject: subject.after_a_step(input_ids, positions)


def generated(prompt: Any, options: Mapping[str, Any]) -> Callable[[Subject], Any]:
    asked = {"max_new_tokens": 2, **options}
    return lambda subject: list(generate(subject.executable, prompt, **asked))


def of_row_1(subject: Subject, changes: Mapping[str, Tensor]) -> list[Tensor]:
    """What becomes of the second row, and the states of the first that have a fixed size."""
    given = {**subject.inputs(), **changes}
    found = subject.executable.run("forward", given)
    name = "state.2.recurrent"
    torch.testing.assert_close(found[name][0], given[name][0], rtol=0, atol=0)
    return [found[name][1] for name in sorted(found)]


def states_kept(subject: Subject, positions: Tensor) -> list[Tensor]:
    given = subject.inputs()
    found = subject.executable.run("forward", {**given, "positions": positions})
    for name in ("state.1.key", "state.1.key_positions", "state.2.recurrent"):
        torch.testing.assert_close(found[name], given[name], rtol=0, atol=0)
    return [found["state.2.recurrent"]]


def nan_in_row_0(subject: Subject) -> list[Tensor]:
    given = subject.inputs()
    for tensor in given.values():
        if tensor.is_floating_point():
            tensor[0] = float("nan")
    logits = subject.executable.run("forward", given)["logits"]
    assert logits[0].isnan().all()
    assert not logits[1].isnan().any()
    return [logits[1]]


def compiled(subject: Subject, number: float, **options: Any) -> Executable:
    broken = make_model()
    name, weight = list(broken.named_parameters())[1]
    assert weight.ndim, name
    with torch.no_grad():
        weight.view(-1)[3] = number
    return seqmix.compile(broken, subject.backend, cache=False, **options)


def logits_are_nan(executable: Executable, subject: Subject) -> list[Tensor]:
    logits = executable(*subject.tokens(), subject.states())[0]
    assert logits.isnan().all()
    return []


def on_meta() -> Model:
    with torch.device("meta"):
        return Model(tiny.config(**shape_of(KINDS)))
