"""The real model against transformers, far out, with YaRN: once with its tables, once with ours.

transformers computes angles in float32, which is off by up to 5e-4 radians at position 12000; ours
are float64. With its tables in our model what is left is rounding of sums, without them the tables
differ as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from seqmix.checkpoint import resolve
from seqmix.config import Kind
from seqmix.errors import CheckpointError
from seqmix.model import Model
from seqmix_checkpoints.families import to_transformers

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("smollm2")]

TEXT = Path(__file__).parent.parent / "golden" / "text" / "river.txt"
WINDOW = 64
YARN = Kind(kind="yarn", theta=100000.0, factor=2.0, original_context_length=8192)


@dataclass(frozen=True)
class Pair:
    """The same weights here and in transformers, and text to feed them."""

    ours: Model
    theirs: Any
    ids: list[int]


@pytest.fixture(scope="module")
def pair() -> Pair:
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    try:
        checkpoint = resolve("smollm2")
    except CheckpointError as error:
        pytest.skip(str(error))
    config = checkpoint.config.with_position(YARN, 16384)
    ours = Model.from_checkpoint(checkpoint.with_config(config)).eval()
    assert checkpoint.tokenizer is not None
    ids = checkpoint.tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    return Pair(ours, to_transformers(transformers, config, ours), ids)


def window(pair: Pair, number: int, start: int) -> tuple[Tensor, Tensor]:
    """A stretch of the text, as if it stood at position ``start``."""
    ids = torch.tensor([pair.ids[number * WINDOW : (number + 1) * WINDOW]])
    return ids, torch.arange(start, start + WINDOW).unsqueeze(0)


@pytest.mark.parametrize(("number", "start"), [(0, 0), (1, 4000), (2, 8150), (3, 11900)])
@torch.inference_mode()
def test_logits_equal_those_of_transformers(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, number: int, start: int
) -> None:
    ids, positions = window(pair, number, start)
    expected = pair.theirs(ids, position_ids=positions).logits
    own = pair.ours(ids, positions)[0]
    cos, sin = pair.theirs.model.rotary_emb(expected, positions)
    half = cos.shape[-1] // 2

    def foreign_tables(positions: Tensor, context_length: Tensor) -> tuple[Tensor, ...]:
        return cos[..., :half], sin[..., :half]

    monkeypatch.setattr(pair.ours.position, "tables", foreign_tables)
    injected = pair.ours(ids, positions)[0]
    with_theirs = (injected - expected).abs().max().item()
    with_ours = (own - expected).abs().max().item()
    print(f"position {start}: {with_theirs:.2e} with their tables, {with_ours:.2e} with ours")
    assert with_theirs <= 1e-4
    assert with_ours <= 1e-2


@torch.inference_mode()
def test_the_comparison_notices_another_scale(pair: Pair) -> None:
    ids, positions = window(pair, 3, 11900)
    other = Model(pair.ours.config.with_position(YARN.model_copy(update={"factor": 4.0}), 32768))
    other.load_state_dict(pair.ours.state_dict())
    difference = other(ids, positions)[0] - pair.theirs(ids, position_ids=positions).logits
    assert difference.abs().max().item() > 1e-1
