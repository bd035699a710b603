"""torch.compile(model, backend="seqmix-..."): what torch makes of a model runs on our backends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import seqmix
from seqmix import dynamo
from seqmix.dynamo import compiler
from seqmix.errors import BackendError, CaptureError
from seqmix.model import Model

ONNX = "seqmix-onnxruntime"
TINY: dict[str, Any] = {
    "vocab_size": 31,
    "width": 16,
    "context_length": 64,
    "head_dim": 8,
    "position": {"kind": "rope"},
    "blocks": [
        {"steps": [{"kind": "attention", "heads": 2, "head_dim": 8}, {"kind": "mlp", "hidden": 8}]},
        {"steps": [{"kind": "retention", "heads": 2}]},
    ],
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Nothing is compiled yet, and nobody asks for gradients."""
    pytest.importorskip("onnxruntime")
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every compilation, whether sizes could vary in it."""
    seen: list[bool] = []
    inner = dynamo.program_of_graph

    def counted(*args: Any, varying: bool) -> Any:
        made = inner(*args, varying=varying)
        seen.append(varying)
        return made

    monkeypatch.setattr(dynamo, "program_of_graph", counted)
    return seen


def agree(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)


class Several(nn.Module):
    """Several results, one of them a number, a buffer, a tied weight, and a number as argument."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.tied = self.linear.weight
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x: Tensor, k: int) -> tuple[Tensor, int, Tensor]:
        y = self.linear(x) * self.offset + k
        return y, x.shape[0] * 2 + k, self.tied @ x.t()


def test_torch_knows_the_names() -> None:
    from torch._dynamo.backends.registry import list_backends, lookup_backend

    assert {ONNX, "seqmix-tvm", "seqmix-triton"} <= set(list_backends())
    assert lookup_backend(ONNX) is compiler("onnxruntime") is dynamo.onnxruntime
    with pytest.raises(AttributeError, match="no backend 'onnxruntim'; did you mean 'onnxruntime'"):
        dynamo.onnxruntim  # noqa: B018


def test_sizes_vary_after_the_second_one(compilations: list[bool]) -> None:
    model = Several()
    compiled = torch.compile(model, backend=ONNX)
    for rows, k in ((3, 5), (5, 5), (7, 5), (9, 5)):
        x = torch.randn(rows, 4)
        agree(compiled(x, k), model(x, k))
    assert len(compilations) == 2


def test_numbers_that_change_are_compiled_each(compilations: list[bool]) -> None:
    model, x = Several(), torch.randn(3, 4)
    compiled = torch.compile(model, backend=ONNX, dynamic=True)
    for k in (5, 7, 7, 5):
        agree(compiled(x, k), model(x, k))
    assert len(compilations) == 2


def test_too_many_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo, "_MOST", 1)
    compiled = torch.compile(lambda x, k: x * k, backend=ONNX, dynamic=True)
    x = torch.randn(2, 4)
    agree(compiled(x, 5), x * 5)
    with pytest.raises(BackendError, match="pass numbers that change as tensors"):
        compiled(x, 7)


def test_an_argument_that_is_returned() -> None:
    def work(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x + 1
        return x, y, y

    x = torch.randn(2, 4)
    with torch.inference_mode():
        agree(torch.compile(work, backend=ONNX)(x), work(x))


def test_a_weight_that_changes_is_seen(compilations: list[bool]) -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True)), torch.randn(2, 4)
    compiled = torch.compile(model, backend=ONNX)
    agree(compiled(x), model(x))
    model[0].weight.mul_(-2)
    agree(compiled(x), model(x))
    model.load_state_dict({"0.weight": torch.ones(3, 4), "0.bias": torch.zeros(3)})
    agree(compiled(x), model(x))
    agree(compiled(x), model(x))
    assert len(compilations) == 3


def test_integers_and_masks() -> None:
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 2))
    compiled, ids = torch.compile(model, backend=ONNX), torch.randint(0, 11, (2, 5))
    agree(compiled(ids), model(ids))


@pytest.mark.parametrize("norm_first", [False, pytest.param(True, marks=pytest.mark.full)])
def test_an_encoder_layer_of_torch(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, norm_first=norm_first, batch_first=True).eval()
    compiled, x = torch.compile(layer, backend=ONNX, fullgraph=True), torch.randn(2, 5, 16)
    agree(compiled(x), layer(x))
    padding = torch.tensor([[False, False, False, True, True], [False] * 5])
    found = compiled(x, src_key_padding_mask=padding)
    agree(found, layer(x, src_key_padding_mask=padding))


@pytest.mark.full
@pytest.mark.parametrize("masked", [False, True])
def test_attention_of_torch(masked: bool) -> None:
    layer = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    compiled, x = torch.compile(layer, backend=ONNX), torch.randn(2, 5, 16)
    mask = nn.Transformer.generate_square_subsequent_mask(5) if masked else None
    found, weights = compiled(x, x, x, attn_mask=mask)
    wanted, wanted_weights = layer(x, x, x, attn_mask=mask)
    agree(found, wanted)
    agree(weights, wanted_weights)


def test_writing_in_place_that_shows_nowhere_else() -> None:
    def work(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(x)
        y += 1
        same = y
        y.mul_(2)
        same.clamp_(max=3)
        flat = (x * 2).view(-1)
        flat.add_(1)
        return y, flat

    x = torch.randn(2, 4)
    agree(torch.compile(work, backend=ONNX)(x), work(x))


def _through_a_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 1
    left, _ = y.chunk(2, 1)
    y.add_(1)
    return left + 0, y + 0


def _into_an_argument(x: Tensor) -> Tensor:
    return x.view(-1).add_(1) * 2


@pytest.mark.parametrize("work", [_through_a_view, _into_an_argument])
def test_writing_that_shows_elsewhere_is_refused(work: Any) -> None:
    with pytest.raises(CaptureError, match=r"test_dynamo.py:\d+\): 'aten.add_.Tensor' changes"):
        torch.compile(work, backend=ONNX)(torch.randn(2, 4))


def test_what_the_ir_has_no_op_for_is_named_with_its_line() -> None:
    def work(x: Tensor) -> Tensor:
        return torch.linalg.svdvals(x)

    with pytest.raises(CaptureError, match=r"test_dynamo.py:\d+\).*'aten.linalg_svdvals.default'"):
        torch.compile(work, backend=ONNX)(torch.randn(3, 3))


def test_gradients_are_refused() -> None:
    compiled = torch.compile(nn.Linear(4, 4), backend=ONNX)
    with torch.enable_grad(), pytest.raises(BackendError, match=r"within torch.no_grad\(\)"):
        compiled(torch.randn(2, 4))


def test_a_graph_that_is_another_for_every_size(compilations: list[bool]) -> None:
    def work(x: Tensor) -> Tensor:
        return torch.stack([row * i for i, row in enumerate(x)]).sum(0)

    compiled = torch.compile(work, backend=ONNX)
    for rows in (2, 3, 4):
        x = torch.randn(rows, 4)
        agree(compiled(x), work(x))
    assert len(compilations) == 3


@pytest.mark.full
def test_a_model_decodes_in_one_graph(compilations: list[bool]) -> None:
    """The prompt, a step, and a step whose past may be of any length: three graphs."""
    model = Model(seqmix.ModelConfig.model_validate(TINY)).eval()
    compiled = torch.compile(model, backend=ONNX, fullgraph=True)
    ids, positions = torch.randint(0, 31, (2, 9)), torch.arange(9).repeat(2, 1)
    wanted, before = model(ids[:, :5], positions[:, :5])
    found, after = compiled(ids[:, :5], positions[:, :5])
    agree(found, wanted)
    for t in range(5, 9):
        here = slice(t, t + 1)
        wanted, before = model(ids[:, here], positions[:, here], before)
        found, after = compiled(ids[:, here], positions[:, here], after)
        agree(found, wanted)
        agree(after, before)
    assert len(compilations) == 3


@pytest.mark.full
def test_tvm() -> None:
    pytest.importorskip("tvm")
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))
    compiled = torch.compile(model, backend="seqmix-tvm")
    for rows in (2, 5, 7):
        x = torch.randn(rows, 8)
        agree(compiled(x), model(x))


TRITON = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))
compiled = torch.compile(model, backend="seqmix-triton")
with torch.no_grad():
    for rows in (2, 5, 7):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), model(x), atol=2e-5, rtol=1e-4)
print("agrees")
"""


@pytest.mark.full
def test_triton(tmp_path: Path) -> None:
    """In its interpreter, which must be asked for before Triton is imported."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", TRITON],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1", "SEQMIX_CACHE_DIR": str(tmp_path)},
    )
    assert "agrees" in done.stdout, done.stderr
