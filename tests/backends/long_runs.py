"""Decoding for thousands of steps: what it leaves in memory, and how far it strays.

S steps, V vocabulary.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tests.core import tiny
from torch import Tensor

import seqmix
from seqmix.backend import Executable, Steps
from seqmix.model import Model, initial_states, unflatten_states

os.environ["TRITON_INTERPRET"] = "1"  # Before anything of Triton is imported.

WIDTH = 16
HEADS: dict[str, Any] = {"heads": 2, "head_dim": 8}
MODELS: dict[str, list[dict[str, Any]]] = {
    "window": [{"kind": "attention", **HEADS, "window": 8}] * 2,
    "xlstm": [{"kind": "mlstm", "heads": 2}, {"kind": "slstm", "heads": 2}],
    "gated": [
        {"kind": "rwkv4_time_mix"},
        {"kind": "rwkv4_channel_mix"},
        {"kind": "long_convolution", "taps": 40},
    ],
}
"""Models whose states have a fixed size; the first has rotated keys, far beyond its context."""


@dataclass(frozen=True)
class Memory:
    """What the process holds: bytes resident, blocks of Python's allocator, objects with links."""

    resident: int
    blocks: int
    objects: int

    @staticmethod
    def now() -> Memory:
        """After a collection. The list of objects itself takes megabytes: it is made first."""
        gc.collect()
        objects = len(gc.get_objects())
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
        return Memory(pages * os.sysconf("SC_PAGE_SIZE"), sys.getallocatedblocks(), objects)


@dataclass(frozen=True)
class Run:
    """The logits ``[S, V]`` of a run, and the memory after a tenth of it and at its end."""

    logits: Tensor
    early: Memory
    late: Memory
    sizes: tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]
    """Of the states, at the same two moments."""

    def growth(self) -> Memory:
        """What came in between."""
        return Memory(
            self.late.resident - self.early.resident,
            self.late.blocks - self.early.blocks,
            self.late.objects - self.early.objects,
        )


@cache
def model(name: str) -> Model:
    """One of :data:`MODELS` with weights that are far from trivial."""
    rope = {"position": tiny.ROPE, "head_dim": 8} if name == "window" else {}
    blocks = [{"steps": MODELS[name]}]
    fields = {"position": None, "head_dim": None, "width": WIDTH, "blocks": blocks, **rope}
    return tiny.model(**fields)


@cache
def tokens(steps: int) -> tuple[Tensor, Tensor]:
    """Ids and positions ``[1, S]``."""
    ids, positions = tiny.tokens(1, steps, seed=3)
    return ids, positions.contiguous()


@cache
def at_once(name: str, steps: int) -> Tensor:
    """The logits ``[S, V]`` of all tokens in one call of the torch model, in float64."""
    import copy

    wide = copy.deepcopy(model(name)).double()
    ids, positions = tokens(steps)
    states = unflatten_states(wide, initial_states(wide, 1))
    with torch.no_grad():
        return wide(ids, positions, states)[0][0]


def step_by_step(executable: Executable, steps: int) -> Run:
    """Read so many tokens one by one."""
    ids, positions = tokens(steps)
    reader = executable.steps(executable.initial_state(1))
    logits = torch.full((steps, tiny.VOCAB), torch.nan)  # So that all of it is in memory already.
    seen: list[tuple[Memory, dict[str, tuple[int, ...]]]] = []
    for step in range(steps):
        logits[step] = reader(ids[:, step : step + 1], positions[:, step : step + 1])[0, 0]
        if step + 1 in (steps // 10, steps):
            seen.append((Memory.now(), _sizes(reader)))
    (early, first), (late, last) = seen
    return Run(logits, early, late, (first, last))


def compiled(name: str, backend: str) -> Executable:
    """A model on a backend."""
    return seqmix.compile(model(name), backend, cache=False)


def distances(found: Tensor, wanted: Tensor) -> tuple[float, float]:
    """The largest error of the first and of the last tenth, relative to the largest logit."""
    errors = (found.double() - wanted).abs().amax(dim=1) / wanted.abs().max()
    tenth = len(errors) // 10
    return float(errors[:tenth].max()), float(errors[-tenth:].max())


def _sizes(steps: Steps) -> dict[str, tuple[int, ...]]:
    states: Mapping[str, Tensor] = steps.states()
    return {name: tuple(tensor.shape) for name, tensor in states.items()}
