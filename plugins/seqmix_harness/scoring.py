"""Log probabilities of continuations in batches, with the context read once where it is shared.

Sizes: B rows of a batch, S tokens of a piece, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from seqmix.config import ModelConfig
from seqmix.errors import ConfigError
from seqmix.model import Model, flatten_states, initial_states, state_specs, unflatten_states

if TYPE_CHECKING:
    from seqmix.generate import Runner

__all__ = ["Score", "Scorer", "can_share_contexts"]

Ids: TypeAlias = "tuple[int, ...]"
States: TypeAlias = "dict[str, Tensor]"


@dataclass(frozen=True)
class Score:
    """The sum of the log probabilities of a continuation, and whether each was the largest."""

    log_probability: float
    greedy: bool


@dataclass(frozen=True)
class _Piece:
    """A request that fits the context: ``head``, then ``tail``, which ends before the last target.

    The logits of ``tail`` are those of the ``targets``, one for one.
    """

    index: int
    head: Ids
    tail: Ids
    targets: Ids


class Scorer:
    """Scores continuations of contexts with a torch model or a compiled one."""

    def __init__(
        self,
        runner: Runner,
        max_length: int | None = None,
        batch: int = 8,
        share: bool | None = None,
    ) -> None:
        """``max_length`` is the most tokens that are read, by default the model's context.

        ``share`` reads equal contexts once and goes on from the state; None does so wherever it
        changes nothing but rounding. Raises ConfigError for sizes below 1.
        """
        self.runner = runner
        self.max_length = runner.config.context_length if max_length is None else max_length
        self.batch = batch
        self._share = can_share_contexts(runner.config) if share is None else share
        if self.max_length < 1 or batch < 1:
            raise ConfigError(
                f"max_length and batch should be at least 1, found {self.max_length} and {batch}"
            )

    def __call__(
        self,
        requests: Sequence[tuple[Sequence[int], Sequence[int]]],
        done: Callable[[int, Score], None] | None = None,
    ) -> list[Score]:
        """The scores of (context, continuation) pairs, in their order.

        A context that is too long loses its beginning. ``done`` is called with the number of a
        request as soon as its score is known. Raises ConfigError for an empty context, and for a
        continuation that is longer than the model's context.
        """
        scores = [Score(0.0, True)] * len(requests)
        pieces = [self._cut(i, *pair) for i, pair in enumerate(requests) if len(pair[1])]
        for i, (_, continuation) in enumerate(requests):
            if not len(continuation) and done is not None:
                done(i, scores[i])
        for group in self._batches(pieces):
            for piece, score in zip(group, self._score(group), strict=True):
                scores[piece.index] = score
                if done is not None:
                    done(piece.index, score)
        return scores

    def _cut(self, index: int, context: Sequence[int], continuation: Sequence[int]) -> _Piece:
        if not len(context):
            raise ConfigError(f"request {index}: its context is empty; begin with the bos token")
        if len(continuation) > self.max_length:
            raise ConfigError(
                f"request {index}: a continuation of {len(continuation)} tokens does not fit a "
                f"context of {self.max_length}; give a longer one (--max-length, --rope)"
            )
        read = (*context, *continuation)[:-1][-self.max_length :]
        cut = len(read) - len(continuation)
        return _Piece(index, read[:cut], read[cut:], tuple(continuation))

    def _batches(self, pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
        """Pieces of like length together, the longest first; those of one head stay together."""
        ordered = sorted(pieces, key=lambda p: (-len(p.head), p.head, -len(p.tail), p.index))
        if not self._share:
            ordered.sort(key=lambda p: (-len(p.head) - len(p.tail), p.index))
        for start in range(0, len(ordered), self.batch):
            yield ordered[start : start + self.batch]

    def _score(self, pieces: Sequence[_Piece]) -> list[Score]:
        heads = list(dict.fromkeys(piece.head for piece in pieces))
        if self._share and len(heads) < len(pieces) and heads[0]:
            states, index = self._read_heads(heads), {h: i for i, h in enumerate(heads)}
            rows = torch.tensor([index[piece.head] for piece in pieces])
            states = _select(self.runner.config, states, rows)
            inputs = [(piece.tail, len(piece.head)) for piece in pieces]
        else:
            states = _fresh(self.runner, len(pieces))
            inputs = [((*piece.head, *piece.tail), 0) for piece in pieces]
        keep = max(len(piece.tail) for piece in pieces)
        ids, positions = _right_aligned(inputs)
        logits = _read(self.runner, ids, positions, states, keep)[0]
        return [
            _judge(logits[row, keep - len(piece.tail) :], piece.targets)
            for row, piece in enumerate(pieces)
        ]

    def _read_heads(self, heads: Sequence[Ids]) -> States:
        ids, positions = _right_aligned([(head, 0) for head in heads])
        return _read(self.runner, ids, positions, _fresh(self.runner, len(heads)), 1)[1]


def can_share_contexts(config: ModelConfig) -> bool:
    """Whether reading piece by piece is the same as at once: not with every position encoding."""
    if config.position is None:
        return True
    with torch.device("meta"):
        position = Model(config).position
    return position is None or position.splits


def _judge(logits: Tensor, targets: Ids) -> Score:
    """The score of ``targets`` under logits ``[S, V]``, in float32 at least."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    asked = torch.tensor(targets, device=wide.device)
    picked = wide.gather(-1, asked.unsqueeze(-1)).squeeze(-1)
    total = (picked - wide.logsumexp(-1)).double().sum()
    return Score(float(total), bool((wide.argmax(-1) == asked).all()))


def _right_aligned(rows: Sequence[tuple[Ids, int]]) -> tuple[Tensor, Tensor]:
    """Ids and positions ``[B, S]`` of rows that begin at a position; all end together."""
    longest = max(1, max(len(ids) for ids, _ in rows))
    gaps = [longest - len(ids) for ids, _ in rows]
    padded = [[0] * gap + list(ids) for gap, (ids, _) in zip(gaps, rows, strict=True)]
    places = [
        [-1] * gap + list(range(first, first + len(ids)))
        for gap, (ids, first) in zip(gaps, rows, strict=True)
    ]
    return torch.tensor(padded), torch.tensor(places)


@torch.inference_mode()
def _read(
    runner: Runner, ids: Tensor, positions: Tensor, states: States, keep: int
) -> tuple[Tensor, States]:
    """The last ``keep`` logits, and the states after."""
    if not isinstance(runner, Model):
        logits, after = runner(ids, positions, states)
        return logits[:, -keep:], after
    device = runner.embed.weight.device
    logits, new = runner(
        ids.to(device), positions.to(device), unflatten_states(runner, states), keep
    )
    return logits, flatten_states(runner, new)


def _fresh(runner: Runner, batch: int) -> States:
    return (
        initial_states(runner, batch)
        if isinstance(runner, Model)
        else (runner.initial_state(batch))
    )


def _select(config: ModelConfig, states: States, rows: Tensor) -> States:
    """The states of these rows, some of them several times."""
    chosen = {}
    for layer, specs in enumerate(state_specs(config)):
        for key, spec in specs.items():
            tensor = states[f"state.{layer}.{key}"]
            axis = spec.axes.index("B")
            chosen[f"state.{layer}.{key}"] = tensor.index_select(axis, rows.to(tensor.device))
    return chosen
