"""Thousands of steps keep their memory, and end where one call over all the tokens ends.

The full profile takes 10,000 steps; Triton's interpreter, some 30 ms a step, takes 1,000.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.backends import long_runs
from tests.backends.long_runs import MODELS, Run
from tests.core import tiny

import seqmix
from seqmix import registry
from seqmix.backend import Executable

FULL = pytest.mark.full
LIMIT = 1e-4
"""Of the error against float64, relative to the largest logit; float32 has 6e-8."""
MOST_RESIDENT = 2 << 20
"""Bytes that the process may gain: 9,000 tensors of any size are more."""
MOST_BLOCKS = 1000
"""Blocks and objects of Python: far fewer than one a step."""


def compiled(name: str, backend: str) -> Executable:
    available = registry.get("backends", backend)().probe()
    if not available:
        pytest.skip(f"{backend}: {available.reason}")
    return long_runs.compiled(name, backend)


def check(name: str, run: Run, record: Any) -> None:
    growth, steps = run.growth(), len(run.logits)
    early, late = long_runs.distances(run.logits, long_runs.at_once(name, steps))
    for title, value in (
        ("drift_first", early), ("drift_last", late), ("resident", growth.resident),
        ("blocks", growth.blocks), ("objects", growth.objects),
    ):  # fmt: skip
        record(title, value)
    print(f"{name}: {steps} steps, error {early:.1e} first, {late:.1e} last, {growth}")
    assert run.sizes[0] == run.sizes[1]
    assert early < LIMIT
    assert late < max(LIMIT / 10, 4 * early), "the error grows with the steps"
    assert growth.blocks < MOST_BLOCKS
    assert growth.objects < MOST_BLOCKS


@pytest.mark.parametrize(
    ("backend", "name"),
    [("onnxruntime", "window"), ("onnxruntime", "xlstm"), ("torch", "gated")],
)
def test_300_steps(backend: str, name: str, record_property: Any) -> None:
    check(name, long_runs.step_by_step(compiled(name, backend), 300), record_property)


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", ["reference", "torch", "onnxruntime", "tvm"])
def test_10_000_steps(backend: str, name: str, record_property: Any) -> None:
    run = long_runs.step_by_step(compiled(name, backend), 10_000)
    check(name, run, record_property)
    assert run.growth().resident < MOST_RESIDENT


@pytest.mark.full
def test_1_000_steps_in_the_interpreter_of_triton(record_property: Any) -> None:
    run = long_runs.step_by_step(compiled("window", "triton"), 1000)
    check("window", run, record_property)
    assert run.growth().resident < MOST_RESIDENT


FAR = [
    pytest.param(2**24 + 1, id="2^24+1"),
    pytest.param(2**31 + 1, id="2^31+1", marks=FULL),
    pytest.param(2**40 + 1, id="2^40+1", marks=FULL),
]


@pytest.mark.parametrize("start", FAR)
@pytest.mark.parametrize(
    "backend",
    [
        "torch",
        "onnxruntime",
        *(pytest.param(name, marks=FULL) for name in ("reference", "tvm", "triton")),
    ],
)
def test_far_positions_are_told_apart(backend: str, start: int) -> None:
    """Rotated queries and keys know distances alone, unless positions are rounded on the way."""
    executable = compiled("window", backend)
    ids, positions = long_runs.tokens(12)
    wanted, _ = executable(ids, positions)
    first, states = executable(ids[:, :7], positions[:, :7] + start)
    second, _ = executable(ids[:, 7:], positions[:, 7:] + start, states)
    found = torch.cat([first, second], dim=1)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    shuffled, _ = executable(ids, positions * 2)
    assert (shuffled - wanted).abs().max() > 0.05, "distances matter"


SCALINGS: dict[str, dict[str, Any]] = {
    "rope": {},
    "linear": {"factor": 4.0},
    "ntk": {"factor": 4.0},
    "ntk-by-parts": {"factor": 4.0, "original_context_length": 16},
    "yarn": {"factor": 4.0, "original_context_length": 16},
    "dynamic-ntk": {"original_context_length": 16},
    "llama3": {"factor": 4.0, "original_context_length": 16},
}


@pytest.mark.full
@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("backend", ["reference", "torch", "onnxruntime", "tvm", "triton"])
def test_decoding_across_the_end_of_the_trained_context(backend: str, kind: str) -> None:
    """Steps around the trained length, and far past it, are one call over all tokens in float64."""
    import copy

    attention = {"kind": "attention", **long_runs.HEADS}
    made = tiny.model(
        [attention], position={"kind": kind, "theta": 100.0, **SCALINGS[kind]},
        head_dim=8, width=16, context_length=16,
    )  # fmt: skip
    ids, positions = long_runs.tokens(80)
    wanted = copy.deepcopy(made).double()(ids, positions)[0][0]
    available = registry.get("backends", backend)().probe()
    if not available:
        pytest.skip(f"{backend}: {available.reason}")
    executable = seqmix.compile(made, backend, cache=False)
    logits, states = executable(ids[:, :13], positions[:, :13])
    found, steps = [logits[0]], executable.steps(states)
    for step in range(13, 80):
        found.append(steps(ids[:, step : step + 1], positions[:, step : step + 1])[0].clone())
    torch.testing.assert_close(torch.cat(found).double(), wanted, rtol=1e-3, atol=5e-4)
