"""Random graphs of primitive ops on the tvm backend against the interpreter."""

from __future__ import annotations

import pytest
import tests.backends.needs_tvm  # noqa: F401  # skips
from tests.backends.random_primitives import draw, inputs
from tests.backends.tvm_graphs import agree, compile_module

SEEDS = [s if s < 2 else pytest.param(s, marks=pytest.mark.full) for s in range(24)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_graph(seed: int) -> None:
    module, weights = draw(seed)
    executable = compile_module(module, weights)
    for batch, new in ((1, 1), (2, 5), (3, 19)):
        agree(module, executable, inputs(batch, new), weights)
