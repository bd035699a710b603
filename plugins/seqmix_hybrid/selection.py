"""Which queries attend: at random, where a pair of tokens repeats, or where a score is high.

Sizes: B batch, S sequence, D model width, P past slots, T = P + S slots, N selected queries.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqmix.branches import linear
from seqmix.context import Context, valid_last
from seqmix.errors import ConfigError
from seqmix.layers import wide
from seqmix.state import State, StateSpec
from seqmix_hybrid.budget import Budget, greedy, packed

__all__ = ["Choice", "Learned", "Programmatic", "Random", "Selection", "TopK"]

_PRIME = 2**31 - 1
_TOKENS = 2**31
"""Token ids are below this, so a pair of them is one int64."""


class Choice(NamedTuple):
    """The selected queries, the score that each token has, and the state of the rule."""

    rows: Tensor
    """Indices of the selected queries, int64 ``[B, N]``, -1 for none."""
    scores: Tensor | None
    """float ``[B, S]``: what the rows that attend are multiplied by; None for nothing."""
    state: State


class Selection(nn.Module, ABC):
    """A rule that selects queries of new tokens from them and from the tokens before.

    With a ``budget`` no more than k(n) of the first n valid tokens of a row are selected, first
    come first served: a token that the rule wants is selected when fewer than k(n) are before it,
    n counting it too. The running count is state, and N is min(S, k(P + S)), a size that a graph
    knows. Without one N is S in a graph, which then saves nothing; eager torch looks how many the
    fullest row needs (and waits for a GPU to tell).
    """

    def __init__(self, budget: Budget | None) -> None:
        """``budget`` None is no limit."""
        super().__init__()
        self.budget = budget

    @abstractmethod
    def wanted(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, Tensor | None, State]:
        """Valid tokens that the rule wants, bool ``[B, S]``, their scores, and its own state."""

    def forward(self, x: Tensor, state: State, ctx: Context) -> Choice:
        """Select among the tokens ``x [B, S, D]``; ``state`` is that of the whole mixer."""
        wanted, scores, after = self.wanted(x, state, ctx)
        if self.budget is None:
            return Choice(packed(wanted, _fullest(wanted)), scores, after)
        most = self.budget.of(tokens_so_far(state, ctx))
        taken, count = greedy(wanted, state["selected"], most)
        rows = self.budget.rows(x.shape[1], state["key_positions"].shape[1] + x.shape[1])
        return Choice(packed(taken, rows), scores, {**after, "selected": count})

    def state_spec(self) -> dict[str, StateSpec]:
        """How many tokens of a row are selected so far, where there is a budget."""
        return {} if self.budget is None else {"selected": StateSpec(("B",), "i64")}

    def expected(self, seq_len: int) -> int:
        """How many of the first ``seq_len`` tokens are selected, at most or on average."""
        return seq_len if self.budget is None else int(self.budget.rows(seq_len, seq_len))


class Random(Selection):
    """Every position by itself with a probability: a hash of the seed and the position.

    The same positions in every row and every call, whatever the tokens are; layers differ when
    their seeds do. No torch generator is asked, so a sequence may be cut anywhere.
    """

    def __init__(self, probability: float, seed: int, budget: Budget | None) -> None:
        """Derive the constants of the hash from the seed."""
        super().__init__(budget)
        self.probability = probability
        digest = hashlib.sha256(f"seqmix random selection {seed}".encode()).digest()
        numbers = [int.from_bytes(digest[i : i + 8], "little") for i in range(0, 32, 8)]
        self._add = tuple(number % _PRIME for number in numbers[:3])
        self._times = 1 + numbers[3] % (_PRIME - 1)

    def wanted(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, None, State]:
        """Where the hash of the position is small."""
        limit = round(self.probability * _PRIME)
        return ctx.valid & (self._hashed(ctx.positions.clamp(min=0)) < limit), None, {}

    def expected(self, seq_len: int) -> int:
        """The share of ``probability``, if the budget allows it."""
        return min(super().expected(seq_len), math.ceil(self.probability * seq_len))

    def _hashed(self, positions: Tensor) -> Tensor:
        """Numbers below the prime 2**31 - 1, a permutation of them: products fit into int64."""
        first, second, third = self._add
        h = _fifth_power((positions + first) % _PRIME)
        h = _fifth_power((h * self._times + second) % _PRIME)
        return (h + third) % _PRIME


class Programmatic(Selection):
    """Tokens that repeat a pair: (x[t-1], x[t]) of token ids occurred earlier in the row.

    That is where a lookup can answer (Zoology, section 5). Neighbours are neighbours among valid
    tokens: padding between them is skipped. The ids of all tokens so far are state.
    """

    def wanted(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, None, State]:
        """By sorting the T pairs of a row, so in T log T; one token alone is compared with all.

        ConfigError when the model was called on embeddings.
        """
        if ctx.input_ids is None:
            raise ConfigError(
                "selection 'programmatic' compares token ids, but the model was called on "
                "embeddings; call it on input_ids, or choose another selection"
            )
        tokens = _joined(state["tokens"], ctx.input_ids, ctx)
        repeats = _repeats(_pairs(tokens), x.shape[1])
        wanted = ctx.scatter_back(repeats.unsqueeze(-1)).squeeze(-1)
        return wanted > 0, None, {"tokens": tokens}

    def state_spec(self) -> dict[str, StateSpec]:
        """The ids of the valid tokens at the right end, -1 in front of them."""
        return {**super().state_spec(), "tokens": StateSpec(("B", "P"), "i64", fill=-1)}


class Scored(Selection):
    """A rule by a learned score, ``sigmoid(w x + b)``, which also scales what is selected.

    So gradients reach the scores of what is selected. In training the penalty
    ``sparsity * relu(mean score - k(n) / n)`` over the valid tokens is added to
    ``ctx.aux_losses`` (Zoology, section 5). With ``dense`` every valid token attends in training,
    as in the paper: all scores have a gradient, at the cost of full attention.
    """

    budget: Budget

    def __init__(self, width: int, budget: Budget, sparsity: float, dense: bool) -> None:
        """A projection of D to one score."""
        super().__init__(budget)
        self.score = linear(width, 1, bias=True)
        self.sparsity = sparsity
        self.dense = dense

    def logits(self, x: Tensor) -> Tensor:
        """Scores before the sigmoid, at least float32, ``[B, S]``."""
        bias = self.score.bias
        return F.linear(wide(x), wide(self.score.weight), wide(bias)).squeeze(-1)

    def penalize(self, scores: Tensor, tokens: Tensor, ctx: Context) -> None:
        """Add the penalty; ``tokens [B]`` is n, those in a row so far."""
        if not self.sparsity:
            return
        new = ctx.valid.sum(1)
        share = self.budget.of(tokens).to(scores.dtype) / tokens.clamp(min=1)
        excess = torch.where(ctx.valid, scores, 0.0).sum() - (share * new).sum()
        ctx.aux_losses.append(self.sparsity * F.relu(excess / new.sum().clamp(min=1)))


class Learned(Scored):
    """Tokens whose score is above ``threshold``, as long as the budget lasts: causal.

    A score within rounding of the threshold may fall on either side of it, depending on how its
    dot product was summed up.
    """

    def __init__(
        self, width: int, budget: Budget, sparsity: float, dense: bool, threshold: float
    ) -> None:
        """``threshold`` is one of scores, between 0 and 1."""
        super().__init__(width, budget, sparsity, dense)
        # Logits are compared: sigmoids differ in their last bits from backend to backend.
        self._least = math.log(threshold / (1 - threshold))

    def wanted(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, Tensor, State]:
        """Where the logit is above that of the threshold."""
        logits = self.logits(x)
        return ctx.valid & (logits > self._least), torch.sigmoid(logits), {}

    def forward(self, x: Tensor, state: State, ctx: Context) -> Choice:
        """The causal rule, and in training the penalty."""
        choice = super().forward(x, state, ctx)
        if not self.training or choice.scores is None:
            return choice
        self.penalize(choice.scores, tokens_so_far(state, ctx)[:, -1], ctx)
        return choice._replace(rows=packed(ctx.valid, x.shape[1])) if self.dense else choice


class TopK(Scored):
    """The k(n) highest scores of the n valid tokens of one call: not causal.

    The rule of the paper, for comparison. A later token takes the place of an earlier one, and a
    sequence in pieces is not the sequence at once: neither law holds, in training with ``dense``
    apart.
    """

    def wanted(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, Tensor, State]:
        """Every valid token; how high its score is decides."""
        return ctx.valid, torch.sigmoid(self.logits(x)), {}

    def forward(self, x: Tensor, state: State, ctx: Context) -> Choice:
        """The highest scores first, so an index that is left out stands behind all others."""
        logits = self.logits(x)
        scores, tokens = torch.sigmoid(logits), ctx.valid.sum(1)
        if self.training:
            self.penalize(scores, tokens, ctx)
            if self.dense:
                return Choice(packed(ctx.valid, x.shape[1]), scores, {})
        rows = self.budget.rows(x.shape[1], x.shape[1])
        order = torch.where(ctx.valid, logits, float("-inf")).topk(rows, dim=1).indices
        rank = torch.arange(rows, device=x.device).unsqueeze(0)
        most = torch.minimum(self.budget.of(tokens), tokens)
        return Choice(torch.where(rank < most.unsqueeze(1), order, -1), scores, {})

    def state_spec(self) -> dict[str, StateSpec]:
        """Nothing: every call is a window of its own."""
        return {}


def tokens_so_far(state: State, ctx: Context) -> Tensor:
    """How many valid tokens a row has up to each new one, itself included: int64 ``[B, S]``."""
    past = (state["key_positions"] >= 0).sum(1, keepdim=True)
    return past + ctx.valid.to(torch.int64).cumsum(1)


def _fullest(wanted: Tensor) -> Any:
    """The largest number of wanted tokens in a row, at least 1; all where no data may be seen."""
    if torch.compiler.is_compiling() or type(wanted) is not Tensor:
        return wanted.shape[1]
    return max(1, int(wanted.sum(1).max()))


def _fifth_power(x: Tensor) -> Tensor:
    """``x**5`` modulo the prime, a permutation: 5 does not divide the prime minus 1."""
    square = x * x % _PRIME
    return square * square % _PRIME * x % _PRIME


def _joined(past: Tensor, ids: Tensor, ctx: Context) -> Tensor:
    """The valid tokens of ``past [B, P]`` and ``ids [B, S]`` at the right end, -1 in front."""
    if not ctx.may_be_padded:
        return torch.cat([past, ids], dim=1)
    tokens = torch.cat([past, torch.where(ctx.valid, ids, -1)], dim=1)
    order, _ = valid_last(tokens >= 0)
    return tokens.gather(1, order)


def _pairs(tokens: Tensor) -> Tensor:
    """One number per pair of neighbours in ``tokens [B, T]``, -1 where there is no pair."""
    before = F.pad(tokens[:, :-1], (1, 0), value=-1)
    return torch.where((before >= 0) & (tokens >= 0), before * _TOKENS + tokens, -1)


def _repeats(pairs: Tensor, new: Any) -> Tensor:
    """1 where one of the last ``new`` of ``pairs [B, T]`` occurred before, else 0."""
    if not torch.compiler.is_compiling() and new == 1:
        last = pairs[:, -1:]
        return ((pairs[:, :-1] == last) & (last >= 0)).any(1, keepdim=True).to(torch.int64)
    # Equal pairs stand together in order: all but the first of them repeat.
    ordered, places = pairs.sort(dim=1, stable=True)
    same = F.pad((ordered[:, 1:] == ordered[:, :-1]).to(torch.int64), (1, 0))
    repeats = torch.zeros_like(pairs).scatter(1, places, same)
    start = pairs.shape[1] - new
    return torch.where(pairs >= 0, repeats, 0)[:, start:]
