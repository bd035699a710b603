"""The root of a size: from torch into the IR, back into a fake kernel, and into an ONNX file."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from seqmix.backend import Program
from seqmix.capture import Captured, capture_function
from seqmix.compile import compile
from seqmix.config import BlockConfig, Kind, ModelConfig
from seqmix.errors import CaptureError
from seqmix.ops import long_conv
from seqmix.symbols import Symbols, size_of
from seqmix.weights import Weights
from seqmix_ir.dims import dim, isqrt, minimum_size


class Roots(nn.Module):
    """The first ``isqrt(3 * S)`` of what a bound op gives for twice the input."""

    def forward(self, x: Tensor) -> Tensor:
        count = math.floor(torch.sym_sqrt(3 * x.shape[1]))
        joined = torch.cat([x, x], dim=1)[:, :count].unsqueeze(1)
        return long_conv(joined, x[:1, :count])


class Halves(nn.Module):
    """A root that is no size of the IR."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, : math.floor(torch.sym_sqrt(x.shape[1]) / 2)]


def captured(module: nn.Module) -> Captured:
    return capture_function(
        module, [torch.zeros(2, 7)], input_names=["x"], output_names=["y"], dynamic=[("B", "S")]
    )


@pytest.mark.parametrize("backend", ["reference", "onnxruntime"])
def test_a_root_is_captured_and_run_at_any_length(backend: str) -> None:
    if backend == "onnxruntime":
        pytest.importorskip("onnxruntime")
    found = captured(Roots())
    result = found.module.graph("forward").block.results[0]
    assert str(result.type) == "f32[B, 1, min(2*S, isqrt(3*S))]"
    step = Kind.model_validate({"kind": "mlp", "hidden": 1})
    config = ModelConfig(
        vocab_size=1, width=1, context_length=1, blocks=[BlockConfig(steps=[step])]
    )
    program = Program(found.module, Weights.of_tensors(found.weights), config)
    running = compile(program, backend, cache=False)
    for length in (3, 11, 12, 27, 300):
        x = torch.randn(3, length)
        y = running.run("forward", {"x": x})["y"]
        torch.testing.assert_close(y, Roots()(x), atol=1e-4, rtol=1e-4)


def test_a_root_that_is_scaled_is_refused() -> None:
    with pytest.raises(CaptureError, match="the root rounded down"):
        captured(Halves())


def test_sizes_go_to_torch_and_back() -> None:
    environment = torch.fx.experimental.symbolic_shapes.ShapeEnv()
    mode = torch._subclasses.FakeTensorMode(shape_env=environment)
    x = mode.from_tensor(torch.zeros(5, 7))
    symbols = Symbols([x])
    names = [str(size_of(size)) for size in x.shape]
    for size in (isqrt(dim(names[1])), minimum_size(isqrt(dim(names[1]) - 1) + 1, dim(names[0]))):
        assert size_of(symbols.size(size)) == size
