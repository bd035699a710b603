"""Branches of equal structure are traced once, and only where copies are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.core import tiny
from tests.mixers import GatedCell
from torch import Tensor

from seqmix import registry
from seqmix.branches import SwiGLU
from seqmix.capture import capture_model
from seqmix.capture.stitch import plan_of
from seqmix.capture.structure import same_structure
from seqmix.context import Context
from seqmix.model import Model, initial_states
from seqmix.state import State
from seqmix_ir import Interpreter, verify


def templates(model: Model) -> list[int]:
    return [place.template for place in plan_of(model).places]


def branch(model: Model, step: int) -> Any:
    """The first branch of a step."""
    return list(model.branches())[step]


def agrees(model: Model) -> dict[str, Tensor]:
    """Assert that the captured graph is the model, with a state; returns the weights."""
    captured = capture_model(model)
    verify(captured.module)
    interpreter = Interpreter(captured.module, {k: v.numpy() for k, v in captured.weights.items()})
    flat = initial_states(model, 2)
    states: Any = None
    for length in (3, 4):
        ids, positions = tiny.tokens(2, length)
        positions = positions if length == 3 else positions + 3
        logits, states = model(ids, positions, states)
        inputs = {"input_ids": ids, "positions": positions, **flat}
        out = interpreter.run("forward", {k: v.numpy() for k, v in inputs.items()})
        np.testing.assert_allclose(out["logits"], logits.numpy(), rtol=1e-4, atol=1e-4)
        flat = {k: torch.from_numpy(out[k]) for k in flat}
    return captured.weights


def test_equal_branches_share_a_template() -> None:
    model = tiny.model()
    assert templates(model) == [0, 1, 2, 3, 0, 1, 2, 3]
    weights = agrees(model)
    assert "steps.3.branches.0.mixer.query.weight" in weights


def test_every_branch_says_where_it_stands() -> None:
    graph = capture_model(tiny.model()).module.graph("forward")
    places = {str(op.loc).split(" ")[0] for op in graph.block.ops if op.name == "linear"}
    for step in (0, 3):
        assert f"steps.{step}.branches.0.mixer.query" in places
    assert list(graph.inputs)[-1] == "state.3.key_positions"


def test_loops_are_copied_with_their_bodies() -> None:
    with registry.register_local("mixers", "cell_here", GatedCell):
        model = tiny.model([{"kind": "cell_here"}])
    assert templates(model) == [0, 0]
    agrees(model)


def test_an_attribute_that_differs_makes_another_structure() -> None:
    model = tiny.model([tiny.SWIGLU])
    assert templates(model) == [0, 0]
    branch(model, 1).mixer.scale = 2.0
    assert templates(model) == [0, 1]


def test_a_hook_makes_another_structure() -> None:
    model = tiny.model([tiny.SWIGLU])
    handle = branch(model, 0).register_forward_hook(lambda m, a, out: None)
    assert templates(model) == [0, 1]
    handle.remove()
    assert templates(model) == [0, 0]


def test_one_weight_for_all_layers() -> None:
    model = tiny.model([tiny.SWIGLU])
    first, second = (branch(model, i).mixer for i in range(2))
    names = list(first._modules)
    second._modules[names[0]] = first._modules[names[0]]
    weights = agrees(model)
    assert f"steps.0.branches.0.mixer.{names[0]}.weight" in weights
    assert f"steps.1.branches.0.mixer.{names[0]}.weight" not in weights
    assert f"steps.1.branches.0.mixer.{names[1]}.weight" in weights


def test_weights_tied_within_a_branch() -> None:
    one, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    pair = [torch.nn.Sequential(one, other), torch.nn.Sequential(other, other)]
    assert not same_structure(*pair)
    assert same_structure(pair[0], torch.nn.Sequential(other, one))


class Talkative(SwiGLU):
    """Leaves its output for the next layer, which adds it."""

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        y, state = super().forward(x, state, ctx)
        y = y + getattr(ctx, "heard", 0.0)
        ctx.heard = y
        return y, state


class Loud(SwiGLU):
    """Returns another element type than it got."""

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        y, state = super().forward(x, state, ctx)
        return y.double(), state


@pytest.mark.parametrize("kind", [Talkative, Loud])
def test_where_copies_would_be_wrong_every_branch_is_traced(kind: type[SwiGLU]) -> None:
    model = tiny.model([tiny.SWIGLU])
    for made in model.branches():
        made.mixer.__class__ = kind
    assert templates(model) == [0, 0]
    if kind is Loud:
        model.norm.double()
        model.embed.double()
        for step in model.steps:
            step.double()
        branch(model, 0).mixer.__class__ = SwiGLU
    agrees(model)


def test_modes_are_as_before() -> None:
    model = tiny.model([tiny.SWIGLU, tiny.MLP])
    model.train()
    model.steps[0].eval()
    before = [part.training for part in model.modules()]
    capture_model(model)
    assert [part.training for part in model.modules()] == before
