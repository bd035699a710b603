"""The sampler against exact probabilities: every filter, their order, and streams of rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from seqmix.errors import ConfigError, SeqmixError
from seqmix.sample import (
    Sampler,
    Sampling,
    distribution,
    draw,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize,
)

# Five tokens, most likely in the middle, so that an order by id is not an order by chance.
CHANCES = [0.08, 0.25, 0.40, 0.22, 0.05]
DRAWS = 1000


def scores(chances: list[float] = CHANCES) -> Tensor:
    # Logits are known up to a constant.
    return torch.tensor(chances, dtype=torch.float64).log() + 3.0


def share(*weights: float) -> list[float]:
    return [weight / sum(weights) for weight in weights]


EXPECTED: dict[str, tuple[dict[str, Any], list[float]]] = {
    "plain": ({"temperature": 1.0}, CHANCES),
    "cold": ({"temperature": 0.5}, share(*(p**2 for p in CHANCES))),
    "hot": ({"temperature": 2.0}, share(*(p**0.5 for p in CHANCES))),
    "top_k": ({"temperature": 1.0, "top_k": 2}, share(0, 0.25, 0.40, 0, 0)),
    "top_p": ({"temperature": 1.0, "top_p": 0.7}, share(0, 0.25, 0.40, 0.22, 0)),
    "top_p_just_reached": ({"temperature": 1.0, "top_p": 0.64}, share(0, 0.25, 0.40, 0, 0)),
    "min_p": ({"temperature": 1.0, "min_p": 0.15}, share(0.08, 0.25, 0.40, 0.22, 0)),
    # Cold first: 0.4^2 is 0.56 of all squares, so 0.5 is reached by one token; warm it takes two.
    "temperature_before_top_p": ({"temperature": 0.5, "top_p": 0.5}, [0, 0, 1, 0, 0]),
    "temperature_before_min_p": (
        {"temperature": 0.5, "min_p": 0.5}, [0, 0, 1, 0, 0]),
    # Of the two that top-k leaves, the first has 0.62; of all, 0.6 would take two.
    "top_k_before_top_p": ({"temperature": 1.0, "top_k": 2, "top_p": 0.6}, [0, 0, 1, 0, 0]),
    "all_together": (
        {"temperature": 2.0, "top_k": 4, "top_p": 0.95, "min_p": 0.7},
        share(0, 0.5, 0.4**0.5, 0.22**0.5, 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_exact_distribution(name: str) -> None:
    options, expected = EXPECTED[name]
    found = distribution(scores(), Sampling(**options))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("name", EXPECTED)
def test_draws_follow_the_distribution(name: str) -> None:
    """Pearson's test at 0.1 %: the 99.9th percentile for four degrees of freedom is 18.47."""
    options, expected = EXPECTED[name]
    sampler, given = Sampler(Sampling(**options), [[0]], seed=1), scores().unsqueeze(0)
    tokens = [sampler(given)[0] for _ in range(DRAWS)]
    counts = torch.bincount(torch.tensor(tokens), minlength=5).tolist()
    assert all(count == 0 for count, p in zip(counts, expected, strict=True) if p == 0)
    wanted = [(count, p * DRAWS) for count, p in zip(counts, expected, strict=True) if p]
    assert sum((count - mean) ** 2 / mean for count, mean in wanted) < 18.47


def test_draws_of_many_rows_follow_the_distribution() -> None:
    """The streams of different rows are independent of each other: one draw of each of them."""
    rows = 2000
    sampler = Sampler(Sampling(temperature=1.0), [[0]] * rows, seed=5)
    counts = torch.bincount(torch.tensor(sampler(scores().expand(rows, 5))), minlength=5)
    wanted = torch.tensor(CHANCES) * rows
    assert float(((counts - wanted) ** 2 / wanted).sum()) < 18.47


def test_filters_that_are_off_change_nothing() -> None:
    given = scores()
    assert keep_top_k(given, 0) is given
    assert keep_top_k(given, 5) is given
    assert keep_top_k(given, 99) is given
    assert keep_top_p(given, 1.0) is given
    assert keep_min_p(given, 0.0) is given
    assert torch.equal(penalize(given, torch.ones(5, dtype=torch.bool), 1.0), given)


def test_of_equals_the_first_ones_stay() -> None:
    equal = torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0])
    assert torch.isfinite(keep_top_k(equal, 2)).tolist() == [False, True, True, False, False]
    assert torch.isfinite(keep_top_p(equal, 0.3)).tolist() == [False, True, True, False, False]
    assert torch.isfinite(keep_min_p(equal, 1.0)).tolist() == [False, True, True, True, False]


def test_the_likeliest_always_stays() -> None:
    for kept in (keep_top_k(scores(), 1), keep_top_p(scores(), 1e-9), keep_min_p(scores(), 1.0)):
        assert torch.isfinite(kept).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9, 0.999])
def test_top_p_is_the_smallest_set_that_reaches_p(p: float) -> None:
    """Against a sort of everything, on a vocabulary with a long tail."""
    given = torch.randn(500, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 4
    chances = torch.softmax(given, dim=-1).tolist()
    wanted, total = set(), 0.0
    for token in sorted(range(500), key=lambda t: -chances[t]):
        if total >= p:
            break
        wanted.add(token)
        total += chances[token]
    assert set(torch.nonzero(torch.isfinite(keep_top_p(given, p))).squeeze(1).tolist()) == wanted


def test_penalty_by_hand() -> None:
    given = torch.tensor([2.0, 2.0, -2.0, -2.0, 0.0])
    seen = torch.tensor([True, False, True, False, True])
    assert penalize(given, seen, 4.0).tolist() == [0.5, 2.0, -8.0, -2.0, 0.0]
    assert penalize(given, seen, 0.5).tolist() == [4.0, 2.0, -1.0, -2.0, 0.0]


def test_the_penalty_counts_prompt_and_continuation_of_its_own_row() -> None:
    """Each token falls below the next one after its first use, and never further."""
    logits = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0]]).expand(2, 5)
    sampler = Sampler(Sampling(repetition_penalty=10.0), [[1, 1], [0]])
    steps = [sampler(logits) for _ in range(4)]
    assert [step[0] for step in steps] == [0, 2, 3, 4]
    assert [step[1] for step in steps] == [1, 2, 3, 4]
    assert sampler(logits) == [0, 0]


def test_the_penalty_comes_before_the_temperature() -> None:
    seen = torch.tensor([False, False, True, False, False])
    penalized = penalize(scores(), seen, 3.0)
    sampler = Sampler(Sampling(temperature=0.5, repetition_penalty=3.0, top_k=1), [[2]], seed=0)
    assert sampler(scores().unsqueeze(0)) == [int(penalized.argmax())] == [1]


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (0.249, 1), (0.25, 3), (0.999, 3)])
def test_a_draw_never_takes_what_has_no_chance(number: float, token: int) -> None:
    assert draw(torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0], dtype=torch.float64), number) == token


def test_a_draw_at_the_very_end_takes_the_last_that_has_a_chance() -> None:
    chances = torch.tensor([0.1] * 11 + [0.0], dtype=torch.float64)
    assert draw(chances, math.nextafter(1.0, 0.0)) == 10
    assert draw(chances, 1.0) == 10


def test_a_tiny_temperature_is_greedy() -> None:
    sampler = Sampler(Sampling(temperature=1e-300), [[0]] * 100, seed=0)
    assert set(sampler(scores().expand(100, 5))) == {2}


def test_masked_logits_are_never_drawn() -> None:
    given = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]]).expand(200, 5)
    options: tuple[dict[str, Any], ...] = (
        {},
        {"top_k": 4},
        {"top_p": 0.99},
        {"min_p": 0.1},
        {"repetition_penalty": 2.0},
    )
    for option in options:
        sampler = Sampler(Sampling(temperature=1.0, **option), [[0]] * 200, seed=0)
        assert set(sampler(given)) == {1, 3}


def test_a_row_has_its_own_stream() -> None:
    given = scores().expand(4, 5)
    options = Sampling(temperature=1.0)

    def tokens(rows: list[int], seed: int = 7) -> list[list[int | None]]:
        sampler = Sampler(options, [[0]] * len(rows), seed, rows)
        steps = [sampler(given[: len(rows)]) for _ in range(60)]
        return [list(row) for row in zip(*steps, strict=True)]

    together = tokens([0, 1, 2, 3])
    assert [tokens([row])[0] for row in range(4)] == together
    assert tokens([3, 1]) == [together[3], together[1]]
    assert len({tuple(row) for row in together}) == 4
    # A sum of seed and row would make the rows of one seed those of the next.
    assert tokens([0], seed=8)[0] not in together


def test_a_row_that_has_ended_draws_nothing() -> None:
    given = scores().expand(2, 5)
    sampler = Sampler(Sampling(temperature=1.0), [[0], [0]], seed=3)
    alone = Sampler(Sampling(temperature=1.0), [[0]], seed=3, rows=[1])
    for step in range(40):
        ended, other = sampler(given, [step < 5, True])
        assert (ended is None) == (step >= 5)
        assert other == alone(given[:1])[0]


def test_without_a_seed_every_run_differs_and_torch_is_left_alone() -> None:
    before = torch.get_rng_state()
    runs = [
        [Sampler(Sampling(temperature=2.0), [[0]] * 60)(scores().expand(60, 5))] for _ in range(2)
    ]
    assert runs[0] != runs[1]
    assert torch.equal(torch.get_rng_state(), before)


def test_greedy_takes_the_first_of_equals() -> None:
    given = torch.tensor([[0.0, 2.0, 2.0], [-1.0, -2.0, -3.0]])
    assert Sampler(Sampling(), [[0], [0]])(given) == [1, 0]
    assert Sampler(Sampling(repetition_penalty=2.0), [[0], [1]])(given) == [1, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (math.nan, "row 1: the logits contain NaN"),
        (math.inf, "row 1: the logits contain infinity"),
    ],
)
def test_bad_logits(temperature: float, bad: float, message: str) -> None:
    sampler = Sampler(Sampling(temperature), [[0], [0]], seed=0)
    given = torch.tensor([[0.0, 1.0], [0.0, bad]])
    with pytest.raises(SeqmixError, match=message):
        sampler(given)
    # The logits of a row that has ended mean nothing.
    assert sampler(given, [True, False])[1] is None
    assert sampler(given, [False, False]) == [None, None]


def test_logits_that_are_all_masked() -> None:
    with pytest.raises(SeqmixError, match="contain infinity"):
        Sampler(Sampling(), [[0]])(torch.full((1, 3), -math.inf))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.5}, r"temperature should be 0 \(greedy\) or a positive .*found -0.5"),
        ({"temperature": math.nan}, "temperature should be"),
        ({"temperature": math.inf}, "temperature should be"),
        ({"top_k": -1}, r"top_k should be an integer, 0 \(off\) or more, found -1"),
        ({"top_k": 0.5}, "top_k should be an integer"),
        ({"top_p": 0.0}, r"top_p should be more than 0 and at most 1 \(off\), found 0.0"),
        ({"top_p": 1.01}, "top_p should be"),
        ({"top_p": math.nan}, "top_p should be"),
        ({"min_p": -0.1}, r"min_p should be between 0 \(off\) and 1, found -0.1"),
        ({"min_p": 1.1}, "min_p should be"),
        ({"repetition_penalty": 0.0}, "repetition_penalty should be a positive number"),
        ({"repetition_penalty": math.inf}, "repetition_penalty should be a positive number"),
    ],
)
def test_values_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sampling(**options)


@pytest.mark.parametrize(("seed", "rows"), [(-1, None), (0, [0, -1])])
def test_seeds_and_rows_are_not_negative(seed: int, rows: list[int] | None) -> None:
    with pytest.raises(ConfigError, match="seed and rows should be 0 or more"):
        Sampler(Sampling(), [[0], [0]], seed, rows)
