"""What capture refuses, and what it leaves as it was: messages name module, line and remedy."""

from __future__ import annotations

import pytest
import torch
from tests.core.test_capture import Function, Layers, X, captured, message
from torch import Tensor, nn

from seqmix.capture import capture_function
from seqmix.errors import CaptureError
from seqmix.scan import scan


def test_an_unknown_op_names_itself_the_module_and_the_line():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Function(lambda x: x.erfinv())

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + 1

    text = message(Outer())
    assert text.startswith("inner (test_capture.py:")
    assert "no counterpart of 'aten.erfinv.default'" in text
    assert "seqmix.op" in text


def test_mutation_is_refused():
    def mutate(x: Tensor) -> Tensor:
        y = x * 2
        y[:, 0] = 0
        return y

    text = message(Function(mutate))
    assert "changes a tensor in place" in text
    assert "test_capture.py:" in text


def test_a_branch_on_a_size_is_refused():
    text = message(Function(lambda x: x * 2 if x.shape[1] > 3 else x))
    assert "only for some values of S" in text
    assert "was decided at test_capture_refusals.py:" in text
    assert "do not compare sizes" in text


def test_a_branch_on_one_is_refused():
    text = message(Function(lambda x: x if x.shape[1] == 1 else x * 2))
    assert "only for some sizes" in text
    assert "was decided at test_capture_refusals.py:" in text


def test_a_loop_over_a_size_is_refused():
    def loop(x: Tensor) -> Tensor:
        h = x[:, 0]
        for t in range(x.shape[1]):
            h = h + x[:, t]
        return h

    text = message(Function(loop))
    assert "only for some values of S" in text


def test_a_branch_on_values_is_refused():
    text = message(Function(lambda x: x * 2 if x.sum() > 0 else x))
    assert "depends on the values of a tensor" in text
    assert "test_capture_refusals.py:" in text


def test_a_mask_as_index_is_refused():
    text = message(Function(lambda x: x[x > 0].sum()))
    assert "torch.where" in text


def test_an_example_of_one_is_refused():
    with pytest.raises(CaptureError, match="use an example of at least 2"):
        capture_function(
            Function(lambda x: x),
            [torch.randn(1, 5)],
            input_names=["x"],
            output_names=["y"],
            dynamic=[("B", "S")],
        )


def test_the_number_of_outputs_is_checked():
    with pytest.raises(CaptureError, match="returned 2 tensors, expected 1"):
        captured(Function(lambda x: (x, x + 1)), [X])


def test_errors_of_seqmix_keep_their_text():
    def run(x: Tensor) -> Tensor:
        _, (y,) = scan(lambda c, s, k: ((c[0].double(),), (s[0],)), (x[:, 0],), (x,))
        return y

    assert "carry 0 was float32" in message(Function(run))


def test_training_mode_is_left_as_it_was():
    module = Layers().train()
    captured(module, [("B", "S")], [torch.int64])
    assert module.training


def test_capture_leaves_torch_logging_alone(capfd):
    import logging

    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before = (logger.level, logger.propagate, list(logger.handlers))
    captured(Layers(), [("B", "S")], [torch.int64])
    message(Function(lambda x: x if x.shape[1] == 1 else x * 2))
    assert (logger.level, logger.propagate, list(logger.handlers)) == before
    assert capfd.readouterr().err == ""
