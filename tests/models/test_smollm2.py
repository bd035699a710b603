"""The compiled real model against torch, on natural text: logits, greedy text, padded batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
import torch
from tests.backends.onnx_graphs import superfluous
from torch import Tensor

import seqmix
from seqmix.backend import Executable
from seqmix.checkpoint import Checkpoint, resolve
from seqmix.extend import extend
from seqmix.generate import generate
from seqmix.model import Model, flatten_states, initial_states, unflatten_states

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("smollm2")]

TEXT = Path(__file__).parent.parent / "golden" / "text" / "river.txt"
TOLERANCE = 2e-4


@dataclass(frozen=True)
class Pair:
    """The same model twice, and text to feed it."""

    checkpoint: Checkpoint
    model: Model
    compiled: Executable
    ids: list[int]


@pytest.fixture(scope="module", params=["onnxruntime", "tvm"])
def pair(request: pytest.FixtureRequest) -> Pair:
    pytest.importorskip(request.param)
    checkpoint = resolve("smollm2")
    checkpoint = checkpoint.with_config(extend(checkpoint.config, "yarn:2"))
    model = Model.from_checkpoint(checkpoint).eval()
    compiled = seqmix.compile(model, backend=request.param, cache=False)
    assert checkpoint.tokenizer is not None
    ids = checkpoint.tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    assert len(ids) >= 700, "the text is too short for two rows of 330 tokens"
    return Pair(checkpoint, model, compiled, ids)


def rows(ids: list[int], batch: int, length: int) -> Tensor:
    """Different stretches of the text under each other."""
    return torch.tensor([ids[i * 331 : i * 331 + length] for i in range(batch)])


def torch_forward(
    model: Model, ids: Tensor, positions: Tensor, states: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    with torch.inference_mode():
        logits, after = model(ids, positions, unflatten_states(model, states))
    return logits, flatten_states(model, after)


@pytest.mark.parametrize("past", [0, 1, 130])
@pytest.mark.parametrize("batch", [1, 2])
def test_logits_at_untraced_lengths(pair: Pair, batch: int, past: int) -> None:
    text = rows(pair.ids, batch, past + 200)
    states = initial_states(pair.model, batch)
    if past:
        positions = torch.arange(past).expand(batch, past)
        _, states = torch_forward(pair.model, text[:, :past], positions, states)
    for length in (1, 2, 7, 63, 65, 200):
        ids = text[:, past : past + length]
        positions = torch.arange(past, past + length).expand(batch, length)
        expected, expected_states = torch_forward(pair.model, ids, positions, states)
        logits, after = pair.compiled(ids, positions, states)
        assert (logits - expected).abs().max().item() <= TOLERANCE, (batch, past, length)
        assert set(after) == set(expected_states)
        for name, tensor in expected_states.items():
            torch.testing.assert_close(after[name], tensor, atol=TOLERANCE, rtol=1e-4)


def test_greedy_continuations_are_identical(pair: Pair) -> None:
    for start in (0, 113):
        prompt = pair.ids[start : start + 24]
        on_torch = list(generate(pair.model, prompt, max_new_tokens=40))
        compiled = list(generate(pair.compiled, prompt, max_new_tokens=40))
        assert len(on_torch) == 40
        assert compiled == on_torch


@pytest.mark.parametrize("where", ["left", "right", "middle"])
def test_padded_batches_equal_single_rows(pair: Pair, where: str) -> None:
    short, long = pair.ids[:23], pair.ids[400:440]
    ids, positions = pad(short, len(long), where)
    batch_ids = torch.stack([ids, torch.tensor(long)])
    batch_positions = torch.stack([positions, torch.arange(len(long))])
    logits, states = pair.compiled(batch_ids, batch_positions)
    keep = positions >= 0
    alone, alone_states = pair.compiled(torch.tensor([short]), torch.arange(23).unsqueeze(0))
    torch.testing.assert_close(logits[0][keep], alone[0], atol=TOLERANCE, rtol=0)
    step_ids, step_positions = torch.tensor([[5], [5]]), torch.tensor([[23], [40]])
    after, _ = pair.compiled(step_ids, step_positions, states)
    after_alone, _ = pair.compiled(step_ids[:1], step_positions[:1], alone_states)
    torch.testing.assert_close(after[0], after_alone[0], atol=TOLERANCE, rtol=0)


def pad(row: list[int], length: int, where: str) -> tuple[Tensor, Tensor]:
    """The row stretched to ``length`` by padding, and its positions with -1 there."""
    missing = length - len(row)
    at = {"left": 0, "right": len(row), "middle": len(row) // 2}[where]
    ids = row[:at] + [0] * missing + row[at:]
    positions = [*range(at), *[-1] * missing, *range(at, len(row))]
    return torch.tensor(ids), torch.tensor(positions)


@pytest.mark.parametrize("pair", ["onnxruntime"], indirect=True)
def test_the_file_has_no_dead_or_repeated_node(pair: Pair, tmp_path: Path) -> None:
    pair.compiled.save(tmp_path)
    assert superfluous(onnx.load(tmp_path / "model.onnx", load_external_data=False)) == []
