"""The rules that select queries, each against a loop over tokens, and the sizes they promise."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from seqmix.context import Context
from seqmix.errors import ConfigError
from seqmix.state import State, initial_state
from seqmix_hybrid.budget import Budget, BudgetKind, greedy, packed
from seqmix_hybrid.selection import Choice, Learned, Programmatic, Random, Selection, TopK

WIDTH = 6
PAD = -1


def context(positions: list[list[int]], ids: list[list[int]] | None = None) -> Context:
    """Of rows of positions, padding -1."""
    return Context(torch.tensor(positions), input_ids=None if ids is None else torch.tensor(ids))


def numbered(rows: list[list[bool]]) -> list[list[int]]:
    """Positions that count the true places of each row."""
    return [[sum(row[:i]) if real else PAD for i, real in enumerate(row)] for row in rows]


def fresh(rule: Selection, batch: int) -> State:
    state = initial_state(rule.state_spec(), batch, dtype=torch.float32)
    return {"key_positions": torch.zeros(batch, 0, dtype=torch.int64), **state}


def run(rule: Selection, x: Tensor, ctx: Context, cuts: list[int]) -> list[list[int]]:
    """Selected places of every row, the sequence cut into pieces."""
    S = x.shape[1]
    state, found = fresh(rule, x.shape[0]), [list[int]() for _ in x]
    for start, stop in zip([0, *cuts], [*cuts, S], strict=True):
        ids = None if ctx.input_ids is None else ctx.input_ids[:, start:stop]
        part = Context(ctx.positions[:, start:stop], input_ids=ids)
        choice = rule(x[:, start:stop], state, part)
        for row, places in zip(found, choice.rows.tolist(), strict=True):
            row += [start + place for place in places if place >= 0]
        seen = torch.cat([state["key_positions"], part.positions], dim=1)
        state = {**choice.state, "key_positions": seen}
    return found


def padded(batch: int, length: int, seed: int) -> list[list[bool]]:
    draw = random.Random(seed)
    return [[draw.random() < 0.8 for _ in range(length)] for _ in range(batch)]


def largest(kind: BudgetKind, factor: Fraction, n: int) -> int:
    """The budget in exact arithmetic: the least k with k >= c * n**e."""
    if kind == "constant":
        return math.ceil(factor)
    if kind == "linear":
        return math.ceil(factor * n)
    square = factor * factor * n
    k = math.isqrt(math.ceil(square))
    return k if k * k >= square else k + 1


@pytest.mark.parametrize("kind", ["sqrt", "linear", "constant"])
@pytest.mark.parametrize("factor", ["1", "0.4", "1.5", "1.1", "0.013", "7", "123.25"])
def test_a_budget_is_exact_and_a_size_bounds_it(kind: BudgetKind, factor: str) -> None:
    budget, exact = Budget(kind, float(factor)), Fraction(factor)
    counts = [*range(400), 99 * 99, 10**6, 10**6 + 1, 2**24 - 1, 2**24]
    found = budget.of(torch.tensor(counts)).tolist()
    assert found == [largest(kind, exact, n) for n in counts]
    assert found == sorted(found)
    for n, k in zip(counts[1:], found[1:], strict=True):
        assert budget.rows(n, n) == min(n, k)
        assert budget.rows(1, n) == min(1, k)


@pytest.mark.parametrize("seed", range(8))
def test_greedy_is_the_loop(seed: int) -> None:
    draw = random.Random(seed)
    wanted = [[draw.random() < 0.6 for _ in range(50)] for _ in range(3)]
    most = [sorted(draw.randrange(20) for _ in range(50)) for _ in range(3)]
    before = [min(row[0], draw.randrange(3)) for row in most]
    taken, count = greedy(*map(torch.tensor, (wanted, before, most)))
    for i in range(3):
        number, expected = before[i], []
        for ask, limit in zip(wanted[i], most[i], strict=True):
            expected.append(ask and number < limit)
            number += expected[-1]
        assert taken[i].tolist() == expected
        assert count[i] == number


def test_indices_are_packed_in_order() -> None:
    taken = torch.tensor([[True, False, True, True], [False] * 4])
    assert packed(taken, 3).tolist() == [[0, 2, 3], [-1, -1, -1]]
    assert packed(taken, 5).tolist() == [[0, 2, 3, -1, -1], [-1] * 5]


def test_random_depends_on_seed_and_position_alone() -> None:
    positions = torch.arange(20_000).unsqueeze(0)
    share, picked = 0.2, []
    for seed in range(4):
        rule = Random(share, seed, None)
        wanted, _, _ = rule.wanted(torch.empty(0), {}, Context(positions))
        picked.append(wanted[0])
        # Five standard deviations of independent draws, also of neighbours that agree.
        for value, mean in ((wanted, share), (wanted[:, 1:] & wanted[:, :-1], share**2)):
            sigma = math.sqrt(mean * (1 - mean) / 20_000)
            assert abs(value.double().mean().item() - mean) < 5 * sigma
        other, _, _ = rule.wanted(torch.empty(0), {}, Context(positions[:, 7:99]))
        assert torch.equal(other[0], wanted[0, 7:99])
    for i in range(4):
        for j in range(i):
            both = (picked[i] & picked[j]).double().mean().item()
            assert abs(both - share**2) < 0.01


def test_random_is_the_same_in_every_version() -> None:
    rule = Random(0.25, 5, None)
    wanted, _, _ = rule.wanted(torch.empty(0), {}, Context(torch.arange(40).unsqueeze(0)))
    assert wanted[0].nonzero().flatten().tolist() == PINNED


PINNED = [12, 20, 23, 28, 29, 30, 35, 36]


def repeats(row: list[int]) -> list[bool]:
    """Whether the pair that ends at a token was in the row before; padding is no token."""
    seen, last, found = set[tuple[int, int]](), PAD, []
    for token in row:
        pair = (last, token)
        found.append(token != PAD and last != PAD and pair in seen)
        if token != PAD:
            seen.add(pair)
            last = token
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cuts", [[], [1], [17], [5, 6, 7, 30], list(range(1, 40))])
def test_programmatic_is_the_loop_over_pairs(seed: int, cuts: list[int]) -> None:
    draw = random.Random(seed)
    real = padded(3, 40, seed)
    ids = [[draw.randrange(4) for _ in range(40)] for _ in range(3)]
    rule = Programmatic(None)
    found = run(rule, torch.zeros(3, 40, WIDTH), context(numbered(real), ids), cuts)
    for i in range(3):
        row = [token if there else PAD for token, there in zip(ids[i], real[i], strict=True)]
        expected = [t for t, again in enumerate(repeats(row)) if again]
        assert found[i] == expected
        assert len(expected) > 5


def test_programmatic_tells_large_ids_apart() -> None:
    big = 2**31 - 1
    ids = [[big, big - 1, big, big - 1, 0, big, big]]
    found = run(Programmatic(None), torch.zeros(1, 7, 1), context([list(range(7))], ids), [])
    assert found == [[3]]


def test_programmatic_with_a_budget_takes_the_first() -> None:
    ids = [[1, 2] * 6]
    rule = Programmatic(Budget("constant", 3))
    for cuts in ([], [4], list(range(1, 12))):
        found = run(rule, torch.zeros(1, 12, 1), context([list(range(12))], ids), cuts)
        assert found == [[3, 4, 5]]


def test_programmatic_needs_ids() -> None:
    rule = Programmatic(None)
    with pytest.raises(ConfigError, match="the model was called on embeddings; call it on input"):
        rule(torch.zeros(1, 3, 2), fresh(rule, 1), context([[0, 1, 2]]))


def learned(kind: BudgetKind, factor: float, threshold: float = 0.5) -> Learned:
    torch.manual_seed(1)
    rule = Learned(WIDTH, Budget(kind, factor), 1e-3, False, threshold).double()
    torch.nn.init.normal_(rule.score.weight)
    return rule.eval()


@pytest.mark.parametrize(("kind", "factor"), [("sqrt", 1), ("sqrt", 0.7), ("linear", 0.3)])
@pytest.mark.parametrize("cuts", [[], [1], [17, 18], list(range(1, 40))])
def test_learned_is_the_loop(kind: BudgetKind, factor: float, cuts: list[int]) -> None:
    rule, real = learned(kind, factor, 0.4), padded(3, 40, 2)
    x = torch.randn(3, 40, WIDTH, dtype=torch.float64)
    found = run(rule, x, context(numbered(real)), cuts)
    scores = torch.sigmoid(rule.logits(x)).tolist()
    for i in range(3):
        expected, n = list[int](), 0
        for t in range(40):
            n += real[i][t]
            limit = largest(kind, Fraction(str(factor)), n)
            if real[i][t] and scores[i][t] > 0.4 and len(expected) < limit:
                expected.append(t)
        assert found[i] == expected
        assert len(expected) > 2


def test_the_penalty_is_that_of_the_paper_and_counts_valid_tokens() -> None:
    rule = learned("sqrt", 1).train()
    rule.sparsity = 0.25
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    ctx = context([list(range(9))] * 2)
    rule(x, fresh(rule, 2), ctx)
    scores = torch.sigmoid(rule.logits(x))
    (loss,) = ctx.aux_losses
    assert loss.item() == pytest.approx(0.25 * max(0.0, scores.mean().item() - 3 / 9))
    assert loss.item() > 0
    wide = torch.full((2, 12, WIDTH), 37.0, dtype=torch.float64)
    wide[:, 3:] = x
    other = context([[PAD] * 3 + list(range(9))] * 2)
    rule(wide, fresh(rule, 2), other)
    assert other.aux_losses[0].item() == pytest.approx(loss.item())
    nothing = context([[PAD] * 9] * 2)
    rule(x, fresh(rule, 2), nothing)
    assert nothing.aux_losses[0].item() == 0
    rule.eval()(x, fresh(rule, 2), quiet := context([list(range(9))] * 2))
    assert quiet.aux_losses == []


def test_top_k_takes_the_highest_of_the_whole_window() -> None:
    torch.manual_seed(2)
    rule = TopK(WIDTH, Budget("sqrt", 1), 1e-3, False).double().eval()
    torch.nn.init.normal_(rule.score.weight)
    x = torch.randn(2, 16, WIDTH, dtype=torch.float64)
    real = [[True] * 16, [t % 2 == 0 for t in range(16)]]
    choice: Choice = rule(x, fresh(rule, 2), context(numbered(real)))
    logits = rule.logits(x)
    for i, k in enumerate((4, 3)):
        places = [t for t in range(16) if real[i][t]]
        best = sorted(places, key=lambda t: -logits[i, t].item())[:k]
        assert [t for t in choice.rows[i].tolist() if t >= 0] == best
