"""Both families against the peers' outputs, states and gradients, from the same weights.

The peers ran in float64. In float64 ours must be equal up to the rounding of the stored float32;
in float32 within four times of what the peer's own float32 is off by.

B batch, S sequence, D width.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.plugins.xlstm_peers import (
    LARGE,
    LARGE_MODEL,
    STACK_FEED_FORWARD,
    STACK_MLSTM,
    STACK_SLSTM,
    mlstm_state,
    renamed,
)
from torch import Tensor

from seqmix.model import Model, States
from seqmix_xlstm.families import xlstm_block_stack_config, xlstm_large_config

GOLDEN = Path(__file__).parent.parent / "golden" / "xlstm"
DTYPES = {"f32": torch.float32, "f64": torch.float64}
STORED = 1e-6
"""How far float64 results may be from the stored ones, relative to the largest value."""


@dataclass(frozen=True)
class Run:
    """One forward and backward pass; ``gradients`` has our names."""

    arrays: dict[str, Tensor]
    facts: dict[str, Any]
    output: Tensor
    states: States
    gradients: dict[str, Tensor]
    expected: dict[str, Tensor]
    """The peer's gradients by our names, of the weights whose gradients are stored."""


def load(name: str, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with np.load(GOLDEN / f"{name}.npz") as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file.files}
    arrays = {key: t.to(dtype) if t.is_floating_point() else t for key, t in arrays.items()}
    return arrays, json.loads((GOLDEN / f"{name}.json").read_text())


def below(arrays: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): t for key, t in arrays.items() if key.startswith(prefix)}


def named(weights: dict[str, Tensor], plan: list[tuple], heads: int) -> dict[str, Tensor]:
    """All of ``plan``, rows of (prefix there, rules, prefix here), for the weights there are."""
    found: dict[str, Tensor] = {}
    for prefix, rules, target in plan:
        present = {name: rule for name, rule in rules.items() if prefix + name in weights}
        found |= renamed(weights, prefix, present, target, heads)
    return found


STACK_PLAN = [
    ("blocks.0.", STACK_MLSTM, "steps.0.branches.0."),
    ("blocks.1.", STACK_SLSTM, "steps.1.branches.0."),
    ("blocks.1.", STACK_FEED_FORWARD, "steps.2.branches.0."),
]
LARGE_PLAN = [("", LARGE_MODEL, "")] + [
    (f"backbone.blocks.{i}.", LARGE[j], f"steps.{2 * i + j}.branches.0.")
    for i in range(2)
    for j in range(2)
]


def run_stack(dtype: str) -> Run:
    """The stack reads vectors: they become the embedding of as many tokens; the head shows all."""
    arrays, facts = load("xlstm_block_stack", DTYPES[dtype])
    x = arrays["x"]
    B, S, D = x.shape
    # The peer clips no gradient.
    config = xlstm_block_stack_config(
        B * S, D, 2, slstm_at=[1], heads=2, round_up_to=16, clip=0, dtype=dtype
    )
    weights = below(arrays, "w.")
    loaded = named(weights, STACK_PLAN, heads=2)
    loaded["norm.weight"] = 1 + weights["post_blocks_norm.weight"]
    loaded["embed.weight"] = x.reshape(B * S, D)
    loaded["head.weight"] = torch.eye(B * S, D, dtype=x.dtype)
    # Gradients know nothing of the 1 that residual weights are short of.
    gradients = {k: g for k, g in below(arrays, "g.").items() if "norm" not in k}
    expected = named(gradients, STACK_PLAN, heads=2)
    for i, norm, ours in [(0, "xlstm_norm", "norm"), (1, "group_norm", "mixer.norm")]:
        peer = f"blocks.{i}.{'xlstm.' if norm == 'group_norm' else ''}{norm}.weight"
        expected[f"steps.{i}.branches.0.{ours}.weight"] = arrays[f"g.{peer}"]
    expected["embed.weight"] = arrays["dx"].reshape(B * S, D)
    ids = torch.arange(B * S).reshape(B, S)
    return finish(Model(config), loaded, ids, expected, arrays, facts)


def run_large(dtype: str) -> Run:
    arrays, facts = load("xlstm_large", DTYPES[dtype])
    config = xlstm_large_config(29, 32, 2, heads=2, ffn_round_up_to=16, dtype=dtype)
    loaded = named(below(arrays, "w."), LARGE_PLAN, heads=2)
    expected = named(below(arrays, "g."), LARGE_PLAN, heads=2)
    return finish(Model(config), loaded, arrays["ids"].long(), expected, arrays, facts)


def finish(
    model: Model,
    loaded: dict[str, Tensor],
    ids: Tensor,
    expected: dict[str, Tensor],
    arrays: dict[str, Tensor],
    facts: dict[str, Any],
) -> Run:
    model.load_state_dict(loaded, strict=True)
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    output, states = model(ids, positions)
    output.square().sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return Run(arrays, facts, output.detach(), states, gradients, expected)


@pytest.fixture(scope="module", params=["f32", "f64"])
def stack(request: pytest.FixtureRequest) -> Run:
    return run_stack(request.param)


@pytest.fixture(scope="module", params=["f32", "f64"])
def large(request: pytest.FixtureRequest) -> Run:
    return run_large(request.param)


def check(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    """``tolerance`` is absolute, for float32; in float64 only the storing may be seen."""
    assert found.shape == wanted.shape
    if found.dtype == torch.float64:
        tolerance = STORED * max(1.0, wanted.abs().max().item())
    assert (found - wanted).abs().max().item() <= tolerance


def test_outputs_of_the_stack(stack: Run) -> None:
    D = stack.arrays["x"].shape[2]
    check(stack.output[..., :D], stack.arrays["y"], 4 * stack.facts["tol_float32"]["y"])


def test_gradients_of_the_stack(stack: Run) -> None:
    assert len(stack.expected) == 9
    dx = stack.arrays["dx"].abs().max().item()
    for name, wanted in stack.expected.items():
        # The file says how far dx may be off: the others may as far, relative to their size.
        scale = max(1.0, wanted.abs().max().item() / dx)
        check(stack.gradients[name], wanted, 4 * stack.facts["tol_float32"]["dx"] * scale)


def test_sizes_of_all_gradients_of_the_stack(stack: Run) -> None:
    rules = {"blocks.0.": STACK_MLSTM, "blocks.1.": {**STACK_SLSTM, **STACK_FEED_FORWARD}}
    for name, wanted in stack.facts["param_grad_l2"].items():
        if name == "post_blocks_norm.weight":
            ours = ["norm.weight"]
        else:
            rule = rules[name[:9]][name[9:]]
            step = 2 if name[9:] in STACK_FEED_FORWARD else int(name[7])
            ours = [f"steps.{step}.branches.0.{target}" for target in rule.targets]
        norm = torch.cat([stack.gradients[n].flatten() for n in ours]).norm().item()
        assert norm == pytest.approx(wanted, rel=1e-5), name


def test_states_of_the_stack(stack: Run) -> None:
    """The peer's convolution keeps one input more than is ever read again."""
    arrays, tolerance = stack.arrays, 4 * stack.facts["tol_float32"]["y"]
    parts = [arrays[f"state.block_0.mlstm_state.{i}"] for i in range(3)]
    matrix, vector = stack.states
    # Of C the file holds the first row alone.
    wanted = mlstm_state(parts[0], parts[1][:1], parts[2][:1])
    same_memory({k: t[:1] for k, t in matrix.items()}, wanted, tolerance)
    normalizer = parts[1].squeeze(-1) * torch.exp(parts[2].squeeze(-1))
    ours = matrix["recurrent"][..., -1] * torch.exp(matrix["m"]).unsqueeze(-1)
    assert (ours - normalizer).abs().max() <= tolerance * max(1, normalizer.abs().max())
    for state, i in ((matrix, 0), (vector, 1)):
        tail = arrays[f"state.block_{i}.conv_state.0"].transpose(1, 2)[..., 1:]
        assert (state["conv"] - tail).abs().max() <= tolerance
    h, c, n, m = arrays["state.block_1.slstm_state.0"]
    flat = {key: vector[key].flatten(1) for key in "hcnm"}
    assert (flat["h"] - h).abs().max() <= tolerance
    for key, wanted in (("c", c), ("n", n)):
        found = flat[key] * torch.exp(flat["m"])
        scaled = wanted * torch.exp(m)
        assert (found - scaled).abs().max() <= tolerance * max(1, scaled.abs().max())


def test_outputs_of_the_large_model(large: Run) -> None:
    check(large.output, large.arrays["logits"], 4 * large.facts["tol_float32"]["logits"])


def test_gradients_of_the_large_model(large: Run) -> None:
    assert len(large.expected) == 17
    # A weight of two numbers may be off by little by luck: the worst of all says how far.
    off, sizes = large.facts["tol_float32"]["grads"], large.facts["param_grad_l2"]
    worst = max(off[name] / sizes[name] for name in off)
    for name, wanted in large.expected.items():
        check(large.gradients[name], wanted, 4 * worst * wanted.norm().item())


def test_sizes_of_all_gradients_of_the_large_model(large: Run) -> None:
    for prefix, rules, target in LARGE_PLAN:
        for name, rule in rules.items():
            wanted = large.facts["param_grad_l2"][prefix + name]
            found = large.gradients[target + rule.targets[0]].norm().item()
            assert found == pytest.approx(wanted, rel=5e-5), name


def test_states_of_the_large_model(large: Run) -> None:
    for i, state in enumerate(large.states):
        peer = [large.arrays[f"state.block_{i}.{key}"] for key in "cnm"]
        same_memory(state, mlstm_state(*peer), 1e-5)


def same_memory(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> None:
    """m may drift by rounding: what it scales is compared, in units of the largest."""
    scaled = [s["recurrent"] * torch.exp(s["m"])[..., None, None] for s in (found, wanted)]
    assert (scaled[0] - scaled[1]).abs().max() <= tolerance * max(1, scaled[1].abs().max().item())
    assert (found["m"] - wanted["m"]).abs().max() <= 1e-5
