"""Softmax attention from chosen positions only: the sparse hybrid layers of Zoology.

Sizes: B batch, S sequence, D model width, H heads, K head size, P past slots, N selected queries.
"""

from __future__ import annotations

from typing import Any, Literal, Self, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor

from seqmix.attention_heads import AttentionHeads, HeadsConfig
from seqmix.context import Context
from seqmix.layers import wide
from seqmix.state import State, StateSpec
from seqmix_hybrid.budget import Budget, BudgetKind
from seqmix_hybrid.selection import Learned, Programmatic, Random, Selection, TopK

__all__ = ["SelectiveAttention", "SelectiveAttentionConfig"]

Rule: TypeAlias = Literal["learned", "programmatic", "random", "top_k_noncausal"]

_BUDGET = {"budget", "budget_factor"}
_SCORED = {*_BUDGET, "sparsity_penalty", "dense_training"}
_OPTIONS: dict[Rule, set[str]] = {
    "learned": {*_SCORED, "threshold"},
    "programmatic": _BUDGET,
    "random": {*_BUDGET, "probability", "seed"},
    "top_k_noncausal": _SCORED,
}
"""What each rule reads; another rule's option is refused, since it would do nothing."""


class SelectiveAttentionConfig(HeadsConfig):
    """Options of :class:`SelectiveAttention`: those of the heads, the rule, and the rule's own."""

    selection: Rule = "learned"
    budget: BudgetKind | None = None
    """At most k(n) of the first n tokens attend: ``"sqrt"`` is ``ceil(budget_factor * sqrt(n))``,
    ``"linear"`` ``ceil(budget_factor * n)``, ``"constant"`` ``ceil(budget_factor)``. None is sqrt
    for learned and top_k_noncausal, and no limit for random and programmatic."""
    budget_factor: float = Field(default=1.0, ge=0.0001, le=10_000)
    probability: float = Field(default=0.1, gt=0, le=1)
    """Share of the positions that "random" selects."""
    seed: int = Field(default=0, ge=0)
    """Of "random": give every layer another one, or all select the same positions."""
    threshold: float = Field(default=0.5, gt=0, lt=1)
    """"learned" selects tokens with a score above it."""
    sparsity_penalty: float = Field(default=1e-3, ge=0)
    """Factor of the auxiliary loss of learned scores."""
    dense_training: bool = False
    """With learned scores: in training all tokens attend, weighted by their scores (the paper)."""

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        fields = type(self).model_fields
        known = _OPTIONS[self.selection]
        for name in sorted(set().union(*_OPTIONS.values()) - known):
            if getattr(self, name) != fields[name].default:
                raise ValueError(
                    f"selection '{self.selection}' has no '{name}', it has "
                    f"{', '.join(sorted(known))}; remove it"
                )
        if self._limit() is None and self.budget_factor != fields["budget_factor"].default:
            raise ValueError("'budget_factor' needs 'budget': one of sqrt, linear and constant")
        return self

    def _limit(self) -> BudgetKind | None:
        scored = self.selection in ("learned", "top_k_noncausal")
        return self.budget or ("sqrt" if scored else None)

    def rule(self, width: int) -> Selection:
        """The rule that the options describe."""
        kind = self._limit()
        budget = None if kind is None else Budget(kind, self.budget_factor)
        if self.selection == "random":
            return Random(self.probability, self.seed, budget)
        if self.selection == "programmatic" or budget is None:
            return Programmatic(budget)
        scored = (width, budget, self.sparsity_penalty, self.dense_training)
        return (
            TopK(*scored)
            if self.selection == "top_k_noncausal"
            else Learned(*scored, self.threshold)
        )


class SelectiveAttention(AttentionHeads):
    """Causal attention of selected tokens to all before; the other tokens get 0.

    Keys and values are those of every token, so the state is that of attention and grows with P.
    Queries, what they read and the output projection are computed for the N selected rows alone:
    time and memory grow with N * (P + S). A step of decoding is a graph of fixed form: it attends
    for its token, selected or not, which costs what a step of attention costs. The rule
    "top_k_noncausal" breaks splitting and causality, knowingly; the others keep all laws.
    """

    Config = SelectiveAttentionConfig

    def __init__(self, config: SelectiveAttentionConfig, width: int) -> None:
        """The projections of attention, and the rule; see :class:`SelectiveAttentionConfig`."""
        super().__init__(config, width)
        self.config = config
        self.selection = config.rule(width)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Attend from the selected of the new tokens, and append all of them to the state."""
        index, scores, after = self.selection(x, state, ctx)
        memory = self.remember(x, state, ctx)
        here = index.clamp(min=0)
        query = self.queries(_taken(x, here))
        positions = torch.where(index >= 0, ctx.positions.gather(1, here), -1)
        if ctx.encoding is not None:
            query = ctx.encoding.rotate(query, positions, ctx.context_length, "query")
        y = self.attend(query, positions, memory, ctx)
        if scores is not None:
            y = (wide(y) * scores.gather(1, here).unsqueeze(-1)).to(y.dtype)
        return _put_back(y, index, x), {**memory, **after}

    def state_spec(self) -> dict[str, StateSpec]:
        """The cache of attention, and what the rule remembers."""
        return {**self.cache_spec("P"), **self.selection.state_spec()}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Every causal rule, with and without budgets, grouped keys, biases, norms."""
        return [
            {"heads": 3, "head_dim": 10, "kv_heads": 1, "budget_factor": 1.5},
            {
                "heads": 2, "head_dim": 8, "threshold": 0.3, "budget": "linear",
                "budget_factor": 0.4, "bias": True, "output_bias": True,
            },
            {"heads": 6, "head_dim": 7, "kv_heads": 3, "selection": "programmatic"},
            {
                "heads": 1, "head_dim": 5, "selection": "programmatic", "budget": "constant",
                "budget_factor": 3, "qk_norm": True,
            },
            {"heads": 3, "head_dim": 8, "selection": "random", "probability": 0.4, "seed": 3},
        ]  # fmt: skip

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Keys, values and scores of every token, the rest of attention for the selected.

        These are as many as the budget allows, or the share of "random", and stand anywhere: each
        sees half of the sequence on average.
        """
        rows = self.selection.expected(seq_len)
        return self._flops(batch_size, seq_len, rows, rows * (seq_len + 1) // 2)

    def step_flops(self, batch_size: int, past: int) -> int:
        """A step of attention and a score: its token attends, selected or not."""
        return self._flops(batch_size, 1, 1, past + 1)

    def _flops(self, batch_size: int, tokens: int, rows: int, pairs: int) -> int:
        """Of so many tokens, rows that attend, and keys that they see together."""
        scores = sum(p.numel() for p in self.selection.parameters() if p.dim() > 1)
        each = self.key.weight.numel() + self.value.weight.numel() + scores
        own = self.query.weight.numel() + self.output.weight.numel()
        products = 2 * pairs * self.heads * self.head_dim
        return 2 * batch_size * (tokens * each + rows * own + products)


def _taken(x: Tensor, index: Tensor) -> Tensor:
    """Rows ``index [B, N]`` of ``x [B, S, D]``."""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[2]))


def _put_back(rows: Tensor, index: Tensor, x: Tensor) -> Tensor:
    """Zeros like ``x [B, S, D]`` with ``rows [B, N, D]`` at their places; -1 goes nowhere."""
    S = x.shape[1]
    # A place behind the last one, which is cut off again.
    places = torch.where(index >= 0, index, S).unsqueeze(-1).expand_as(rows)
    return x.new_zeros(x.shape[0], S + 1, x.shape[2]).scatter(1, places, rows)[:, :S]
