"""Static scalings cost nothing: what runs per layer is what runs without scaling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.core import tiny
from torch.utils._python_dispatch import TorchDispatchMode

YARN: dict[str, Any] = {"kind": "yarn", "factor": 4.0, "original_context_length": 16}


class Counting(TorchDispatchMode):
    """Counts the operators that torch runs, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.ran[str(func)] += 1
        return func(*args, **(kwargs or {}))


def operators(position: dict[str, Any], layers: int, tokens: int) -> Counter[str]:
    """What one call of a model of attention layers runs."""
    blocks = [{"repeat": layers, "steps": [tiny.ATTENTION]}]
    model = tiny.model(position={"theta": 100.0, **position}, blocks=blocks)
    with torch.inference_mode(), Counting() as counting:
        model(*tiny.tokens(1, tokens))
    return counting.ran


@pytest.mark.parametrize("tokens", [1, 9])
def test_yarn_multiplies_two_tables_once_per_call(tokens: int) -> None:
    for layers in (1, 4):
        more = operators(YARN, layers, tokens)
        more.subtract(operators({"kind": "rope"}, layers, tokens))
        assert {name: count for name, count in more.items() if count} == {"aten.mul.Tensor": 2}


def test_position_interpolation_runs_what_no_scaling_runs() -> None:
    linear = {"kind": "linear", "factor": 4.0}
    assert operators(linear, 2, 9) == operators({"kind": "rope"}, 2, 9)


def test_a_layer_more_is_seen() -> None:
    assert operators(YARN, 2, 9) != operators(YARN, 1, 9)
