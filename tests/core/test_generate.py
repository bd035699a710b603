"""Generation against full forwards, in batches of different lengths, with stops and seeds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.core import tiny

from seqmix.errors import ConfigError, SeqmixError
from seqmix.generate import generate, generate_all
from seqmix.model import Model
from seqmix.sample import Sampler

PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3, 5]]


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model(dtype="f64")


def argmax_of_full_forwards(model: Model, prompt: list[int], count: int) -> list[int]:
    row = list(prompt)
    for _ in range(count):
        logits, _ = model(torch.tensor([row]), torch.arange(len(row)).unsqueeze(0))
        row.append(int(logits[0, -1].argmax()))
    return row[len(prompt) :]


@pytest.mark.parametrize("chunk", [None, 1, 2, 5, 7, 99])
def test_greedy_is_the_argmax_of_full_forwards(model: Model, chunk: int | None) -> None:
    expected = argmax_of_full_forwards(model, PROMPTS[0], 12)
    assert list(generate(model, PROMPTS[0], max_new_tokens=12, chunk=chunk)) == expected
    assert len(set(expected)) > 2, "a constant continuation tests nothing"


@pytest.mark.parametrize("chunk", [None, 3])
def test_prompts_of_different_lengths(model: Model, chunk: int | None) -> None:
    expected = [argmax_of_full_forwards(model, prompt, 8) for prompt in PROMPTS]
    assert generate_all(model, PROMPTS, max_new_tokens=8, chunk=chunk) == expected


def test_a_row_that_ends_does_not_disturb_the_others(model: Model) -> None:
    free = generate_all(model, PROMPTS, max_new_tokens=9)
    stop = free[0][2]
    cut = [row[: row.index(stop)] if stop in row else row for row in free]
    assert generate_all(model, PROMPTS, max_new_tokens=9, stop=[stop]) == cut
    assert cut[0] != free[0]
    steps = list(generate(model, PROMPTS, max_new_tokens=9, stop={stop}))
    assert [step[0] for step in steps] == cut[0] + [None] * (len(steps) - len(cut[0]))


def test_stop_at_the_first_token(model: Model) -> None:
    first = next(generate(model, PROMPTS[1], max_new_tokens=1))
    assert list(generate(model, PROMPTS[1], max_new_tokens=5, stop=[first])) == []


def test_a_tensor_of_prompts(model: Model) -> None:
    prompt = torch.tensor([PROMPTS[0][:3], PROMPTS[2]])
    assert generate_all(model, prompt, max_new_tokens=4) == generate_all(
        model, prompt.tolist(), max_new_tokens=4
    )


def test_streaming_does_no_work_ahead(model: Model) -> None:
    calls: list[int] = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    try:
        stream: Iterator[int] = generate(model, [1, 2], max_new_tokens=5)
        assert len(calls) == 0
        next(stream)
        assert len(calls) == 1
        list(stream)
        assert len(calls) == 5
    finally:
        handle.remove()
    assert list(generate(model, [1, 2], max_new_tokens=0)) == []


def test_seeded_draws_repeat(model: Model) -> None:
    def draw(seed: int | None) -> list[list[int]]:
        return generate_all(model, PROMPTS, max_new_tokens=12, temperature=1.5, seed=seed)

    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = draw(7)
    assert first == draw(7)
    assert first != draw(8)
    assert draw(None) != draw(None)
    assert torch.equal(torch.get_rng_state(), state), "the global generator was used"


def test_draws_follow_the_temperature() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.7]])).expand(4000, 3)
    counts = torch.bincount(torch.tensor(Sampler(1.0, 0)(logits)), minlength=3) / 4000
    torch.testing.assert_close(counts, torch.tensor([0.1, 0.2, 0.7]), atol=0.03, rtol=0)
    sharp = torch.tensor([0.01, 0.04, 0.49]) / 0.54
    counts = torch.bincount(torch.tensor(Sampler(0.5, 0)(logits)), minlength=3) / 4000
    torch.testing.assert_close(counts, sharp, atol=0.03, rtol=0)
    assert set(Sampler(1e-300, 0)(logits)) == {2}


def test_greedy_takes_the_first_of_equals() -> None:
    assert Sampler()(torch.tensor([[0.0, 2.0, 2.0], [-1.0, -2.0, -3.0]])) == [1, 0]


@pytest.mark.parametrize("temperature", [-0.5, float("nan"), float("inf")])
def test_bad_temperature(temperature: float) -> None:
    with pytest.raises(ConfigError, match="temperature should be"):
        Sampler(temperature)


def test_nan_logits() -> None:
    with pytest.raises(SeqmixError, match="contain NaN"):
        Sampler()(torch.tensor([[0.0, float("nan")]]))


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "at least one token"),
        ([[1], []], {}, "at least one token"),
        (torch.zeros(3, dtype=torch.int64), {}, r"should be int64 \[B, S\]"),
        ([1], {"max_new_tokens": -1}, "at least 0"),
        ([1], {"chunk": 0}, "chunk at least 1"),
        ([1], {"temperature": -1.0}, "temperature"),
    ],
)
def test_bad_arguments_fail_at_the_call(
    model: Model, prompt: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        generate(model, prompt, **{"max_new_tokens": 3, **options})
