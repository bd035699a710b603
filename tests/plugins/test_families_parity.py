"""Every family against transformers: lengths, padding, decoding, generation, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from tests.plugins.checkpoint_families import (
    VARIANTS,
    Pair,
    ids_of,
    make_pair,
    padded,
    positions_of,
)
from torch import Tensor

import seqmix
from seqmix.generate import generate_all
from seqmix.model import flatten_states
from seqmix_checkpoints.families import to_transformers

# The largest difference of logits, whose size is about 5. In float32 transformers' rotary tables
# are rounded earlier than ours; in float64 it is made to use the same precision.
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-13}
DTYPES = [pytest.param(torch.float32, marks=pytest.mark.full), torch.float64]
LENGTHS = [1, 2, 7, 33]
QUICK = ("mistral", "qwen2-window", "qwen3", "neox")
CASES = [v if v in QUICK else pytest.param(v, marks=pytest.mark.full) for v in VARIANTS]
Pairs: TypeAlias = Callable[[str, torch.dtype], Pair]


@pytest.fixture(scope="module")
def pair_of(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Each pair is made once."""
    made: dict[Any, Pair] = {}

    def get(variant: str, dtype: torch.dtype) -> Pair:
        if (variant, dtype) not in made:
            folder: Path = tmp_path_factory.mktemp(variant)
            made[variant, dtype] = make_pair(variant, folder, dtype)
        return made[variant, dtype]

    return get


def theirs_at(pair: Pair, ids: Tensor, mask: Tensor) -> Tensor:
    places = positions_of(mask).clamp(min=0)
    logits: Tensor = pair.theirs(ids, attention_mask=mask, position_ids=places).logits
    return logits


def difference(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("variant", CASES)
@torch.inference_mode()
def test_logits_at_several_lengths(pair_of: Pairs, variant: str, dtype: torch.dtype) -> None:
    pair = pair_of(variant, dtype)
    assert pair.ours.dtype == dtype
    worst, size = 0.0, 0.0
    for length in LENGTHS:
        ids, mask = ids_of(2, length), torch.ones(2, length, dtype=torch.int64)
        logits, _ = pair.ours(ids, positions_of(mask))
        expected = theirs_at(pair, ids, mask)
        worst = max(worst, difference(logits, expected))
        size = max(size, expected.abs().max().item())
    print(f"{variant} {dtype}: {worst:.2e} of {size:.1f}")
    assert worst <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("variant", CASES)
@torch.inference_mode()
def test_padding_on_the_left(pair_of: Pairs, variant: str, dtype: torch.dtype) -> None:
    pair = pair_of(variant, dtype)
    ids, mask = padded([13, 4, 9])
    logits, _ = pair.ours(ids, positions_of(mask))
    worst = difference(logits[mask == 1], theirs_at(pair, ids, mask)[mask == 1])
    assert worst <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("variant", CASES)
@torch.inference_mode()
def test_prefill_and_decoding_equal_everything_at_once(
    pair_of: Pairs, variant: str, dtype: torch.dtype
) -> None:
    pair = pair_of(variant, dtype)
    ids, mask = padded([19, 11])
    positions = positions_of(mask)
    logits, states = pair.ours(ids[:, :13], positions[:, :13])
    parts = [logits]
    for place in range(13, 19):
        at = slice(place, place + 1)
        logits, states = pair.ours(ids[:, at], positions[:, at], states)
        parts.append(logits)
    worst = difference(torch.cat(parts, 1)[mask == 1], theirs_at(pair, ids, mask)[mask == 1])
    assert worst <= TOLERANCE[dtype]


@pytest.mark.parametrize("variant", CASES)
@torch.inference_mode()
def test_greedy_generation_is_the_same(pair_of: Pairs, variant: str) -> None:
    pair = pair_of(variant, torch.float64)
    ids, mask = padded([9, 4, 7])
    expected = pair.theirs.generate(
        ids, attention_mask=mask, max_new_tokens=14, do_sample=False, pad_token_id=0
    )[:, ids.shape[1] :]
    prompts = [row[keep == 1].tolist() for row, keep in zip(ids, mask, strict=True)]
    assert generate_all(pair.ours, prompts, max_new_tokens=14) == expected.tolist()
    assert len(set(expected.flatten().tolist())) > 2


@pytest.mark.parametrize("variant", CASES)
@torch.inference_mode()
def test_the_way_back(pair_of: Pairs, variant: str) -> None:
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    pair = pair_of(variant, torch.float32)
    again = to_transformers(transformers, pair.ours.config, pair.ours)
    # A Mistral without a window is a Llama.
    assert type(again) is type(pair.theirs) or variant == "mistral-full"
    expected, found = pair.theirs.state_dict(), again.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    ids, mask = padded([17, 6])
    logits = theirs_at(Pair(pair.ours, again), ids, mask)
    worst = difference(logits[mask == 1], theirs_at(pair, ids, mask)[mask == 1])
    assert worst <= TOLERANCE[torch.float32]


@pytest.mark.full
@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_onnxruntime_computes_the_same(pair_of: Pairs, variant: str) -> None:
    pytest.importorskip("onnxruntime", reason="compares with ONNX Runtime")
    pair = pair_of(variant, torch.float32)
    executable = seqmix.compile(pair.ours, backend="onnxruntime")
    ids, mask = padded([12, 5])
    positions = positions_of(mask)
    expected, states = pair.ours(ids, positions)
    found, after = executable(ids, positions, None)
    prefill = difference(found[mask == 1], expected[mask == 1])
    token, at = ids_of(2, 1), positions[:, -1:] + 1
    expected, states = pair.ours(token, at, states)
    found, after = executable(token, at, after)
    step = difference(found, expected)
    print(f"{variant}: {prefill:.2e} and {step:.2e} from torch")
    assert max(prefill, step) <= TOLERANCE[torch.float32]
    wanted = flatten_states(pair.ours, states)
    assert set(after) == set(wanted)
    for name, tensor in wanted.items():
        torch.testing.assert_close(torch.as_tensor(after[name]), tensor, atol=1e-4, rtol=1e-4)
