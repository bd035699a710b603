"""Torch programs that have no counterpart in the IR, and mixers that break their contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.golden.errors.messages import Situations
from torch import Tensor, nn

import seqmix
from seqmix import registry
from seqmix.capture import capture, capture_function
from seqmix.context import Context
from seqmix.mixer import SequenceMixer
from seqmix.scan import scan
from seqmix.state import State, StateSpec

__all__ = ["CAPTURE"]

CAPTURE = Situations("capture")
NEAR = r"; did you mean (.*?);"
"""Which of torch's ops are near a name changes with every rule that is added."""


class Inner(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


class Outer(nn.Module):
    """Gives locations a module path."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Inner(torch.neg), Inner(function)])

    def forward(self, *args: Tensor) -> Any:
        return self.layers[1](*args)


def captured(
    function: Callable[..., Any], results: int = 1, sizes: tuple[int, ...] = (2, 5, 6)
) -> None:
    capture_function(
        Outer(function),
        [torch.randn(sizes)],
        input_names=["x"],
        output_names=[f"y{i}" for i in range(results)],
        dynamic=[("B", "S", None)],
    )


@CAPTURE.quoting(NEAR)
def unknown_aten_op() -> None:
    # torch keeps the lines of functions called forward.
    def forward(x: Tensor) -> Tensor:
        return x.erfinv()

    captured(forward)


@CAPTURE.quoting(NEAR)
def op_whose_size_depends_on_values() -> None:
    def forward(x: Tensor) -> Tensor:
        return x.nonzero()

    captured(forward)


@CAPTURE.quoting(r"py:\d+: (.*?);")
def data_dependent_branch() -> None:
    captured(lambda x: x * 2 if x.sum() > 0 else x)


@CAPTURE
def value_taken_out_of_a_tensor() -> None:
    def forward(x: Tensor) -> Tensor:
        return x * x.abs().max().item()

    captured(forward)


@CAPTURE
def mask_as_an_index() -> None:
    def forward(x: Tensor) -> Tensor:
        return x[x > 0]

    captured(forward)


@CAPTURE
def baked_in_length() -> None:
    captured(lambda x: x + torch.zeros(5, 6))


@CAPTURE
def branch_on_the_length() -> None:
    captured(lambda x: x * 2 if x.shape[1] > 3 else x)


@CAPTURE
def branch_on_a_single_token() -> None:
    captured(lambda x: x if x.shape[1] == 1 else x * 2)


@CAPTURE
def loop_over_chunks() -> None:
    def chunks(x: Tensor) -> Tensor:
        total = x[:, 0]
        for start in range(0, x.shape[1], 2):
            total = total + x[:, start]
        return total

    captured(chunks)


@CAPTURE
def tensor_changed_in_place() -> None:
    def forward(x: Tensor) -> Tensor:
        y = x * 2
        y[:, 0] = 0
        return y

    captured(forward)


@CAPTURE
def argument_changed_in_place() -> None:
    def forward(x: Tensor) -> Tensor:
        return x.add_(1)

    captured(forward)


@CAPTURE
def buffer_changed_in_place() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.seen += 1
            return x * self.seen

    captured(Counter())


@CAPTURE
def python_error_in_forward() -> None:
    gates: dict[str, Tensor] = {}
    captured(lambda x: gates["gate"] * x)


@CAPTURE
def shapes_that_do_not_fit() -> None:
    captured(lambda x: x @ torch.zeros(7, 3))


@CAPTURE
def autocast() -> None:
    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ torch.zeros(6, 3)

    captured(cast)


@CAPTURE
def number_of_outputs() -> None:
    captured(lambda x: (x, x + 1))


@CAPTURE
def output_that_is_a_size() -> None:
    captured(lambda x: (x + 1, x.shape[1]), results=2)


@CAPTURE
def example_of_size_one() -> None:
    captured(lambda x: x + 1, sizes=(2, 1, 6))


@CAPTURE
def carry_of_a_scan_changes_its_dtype() -> None:
    def run(x: Tensor) -> Tensor:
        _, (y,) = scan(lambda c, s, k: ((c[0].double(),), (s[0],)), (x[:, 0],), (x,))
        return y

    captured(run)


@CAPTURE.quoting(NEAR)
def unknown_op_in_a_scan() -> None:
    def run(x: Tensor) -> Tensor:
        _, (y,) = scan(lambda c, s, k: (c, (s[0].erfinv(),)), (x[:, 0] + 0,), (x,))
        return y

    captured(run)


class Mean(SequenceMixer):
    """A mixer with a state, and a place for what it does wrong."""

    class Config(seqmix.Strict):
        pass

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        self.width = width

    def state_spec(self) -> dict[str, StateSpec]:
        return {"total": StateSpec(("B", self.width), role="recurrent")}

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        return self.step(x, state["total"])

    def step(self, x: Tensor, total: Tensor) -> tuple[Tensor, State]:
        return x, {"total": total + x.sum(1)}

    def flops(self, batch_size: int, seq_len: int) -> int:
        return 0


def model_of(step: Callable[[Any, Tensor, Tensor], Any]) -> None:
    """Capture a model whose second branch is such a mixer."""
    wrong = type("Wrong", (Mean,), {"step": step})
    with (
        registry.register_local("mixers", "mean", Mean),
        registry.register_local("mixers", "wrong", wrong),
    ):
        steps = [{"kind": "mean"}, {"kind": "wrong"}]
        config = {"vocab_size": 7, "width": 6, "context_length": 9, "blocks": [{"steps": steps}]}
        capture(seqmix.Model(seqmix.ModelConfig.model_validate(config)))


@CAPTURE
def mixer_returns_a_wrong_state_key() -> None:
    model_of(lambda self, x, total: (x, {"totals": total}))


@CAPTURE
def mixer_returns_a_state_too_many() -> None:
    model_of(lambda self, x, total: (x, {"total": total, "count": total}))


@CAPTURE
def mixer_changes_its_state_in_place() -> None:
    def forward(self: Any, x: Tensor, total: Tensor) -> tuple[Tensor, State]:
        return x, {"total": total.add_(1)}

    model_of(forward)


@CAPTURE.quoting(NEAR)
def mixer_uses_an_unknown_op() -> None:
    def forward(self: Any, x: Tensor, total: Tensor) -> tuple[Tensor, State]:
        return x.erfinv(), {"total": total}

    model_of(forward)
