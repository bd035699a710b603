"""Text continuation, token by token, with a torch model or with a compiled one.

Sizes: B prompts, S tokens of a piece, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, TypeAlias, TypedDict, Unpack, overload

import torch
from torch import Tensor

from seqmix.errors import ConfigError
from seqmix.model import Model, flatten_states, initial_states, unflatten_states
from seqmix.prompts import Prompts, Request, integers, is_one_prompt, make_request
from seqmix.sample import Sampler, Sampling

if TYPE_CHECKING:
    from seqmix.backend import Executable

__all__ = ["Options", "Runner", "generate", "generate_all"]

Runner: TypeAlias = "Model | Executable"
States: TypeAlias = dict[str, Tensor]


class Options(TypedDict, total=False):
    """The keywords of :func:`generate`, which says what they mean."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int | None
    rows: Sequence[int] | None
    stop: Collection[int] | Sequence[Collection[int]]
    attention_mask: Tensor | None
    prefill_chunk: int | None


@overload
def generate(
    runner: Runner,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    **options: Unpack[Options],
) -> Iterator[int]: ...
@overload
def generate(
    runner: Runner,
    prompt: Sequence[Sequence[int]] | Tensor,
    *,
    max_new_tokens: int | Sequence[int],
    **options: Unpack[Options],
) -> Iterator[list[int | None]]: ...
def generate(
    runner: Runner,
    prompt: Prompts,
    *,
    max_new_tokens: int | Sequence[int],
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
    rows: Sequence[int] | None = None,
    stop: Collection[int] | Sequence[Collection[int]] = (),
    attention_mask: Tensor | None = None,
    prefill_chunk: int | None = None,
) -> Iterator[int] | Iterator[list[int | None]]:
    """The tokens that continue a prompt, one at a time; nothing is computed ahead of the reader.

    One prompt (a list of ids) gives ids. Several prompts, of any lengths, give a list per step with
    one id per prompt, None where that prompt has ended. Several prompts are lists of ids, or an
    int64 tensor ``[B, S]`` whose ``attention_mask`` ``[B, S]`` is 0 at padding, wherever it stands.
    Raises ConfigError at the call, not at the first token, for an argument that does not fit.

    Args:
        runner: a model, or what :func:`seqmix.compile` made of one.
        prompt: what to continue.
        max_new_tokens: at least 1; one number, or one per prompt.
        temperature: 0 takes the likeliest token, else the scores are divided by it, and filtered
            by ``top_k``, ``top_p`` and ``min_p`` in this order, as :mod:`seqmix.sample` says.
        top_k: keep the k likeliest tokens, 0 for all.
        top_p: keep the fewest likeliest tokens that reach this probability, 1 for all.
        min_p: keep tokens at least so many times as likely as the likeliest, 0 for all.
        repetition_penalty: above 1 makes tokens less likely that the row already has; comes before
            the temperature.
        seed: makes draws repeatable. Each row has a stream of its own.
        rows: the number of each prompt, which picks its stream: prompt 3 of a batch, drawn alone
            with ``rows=[3]``, continues as in the batch. 0, 1, ... when left out.
        stop: a prompt ends before one of these ids; for all prompts, or one collection for each.
        attention_mask: for a tensor of prompts.
        prefill_chunk: the most tokens of a prompt that are read at once; bounds the memory.

    """
    _check_runner(runner)
    request = make_request(runner.config, prompt, attention_mask, max_new_tokens, stop)
    if prefill_chunk is not None and integers([prefill_chunk], "prefill_chunk")[0] < 1:
        raise ConfigError(f"prefill_chunk should be at least 1, found {prefill_chunk}")
    if rows is not None and len(integers(rows, "rows")) != len(request):
        raise ConfigError(f"rows has {len(rows)} numbers for {len(request)} prompts")
    if seed is not None:
        integers([seed], "seed")
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    sampler = Sampler(sampling, request.prompts, seed, rows)
    steps = _continue(runner, request, sampler, prefill_chunk)
    return _first_of_each(steps) if is_one_prompt(prompt) else steps


def generate_all(
    runner: Runner,
    prompts: Sequence[Sequence[int]] | Tensor,
    *,
    max_new_tokens: int | Sequence[int],
    on_token: Callable[[int, int], None] | None = None,
    **options: Unpack[Options],
) -> list[list[int]]:
    """The whole continuation of each prompt; see :func:`generate` for the options.

    ``on_token(row, token)`` is called with every token as soon as it is known.
    """
    if is_one_prompt(prompts):
        raise ConfigError("several prompts are needed, a list of lists of ids; found a single list")
    done: list[list[int]] = [[] for _ in prompts]
    for step in generate(runner, prompts, max_new_tokens=max_new_tokens, **options):
        for row, token in enumerate(step):
            if token is None:
                continue
            done[row].append(token)
            if on_token is not None:
                on_token(row, token)
    return done


def _check_runner(runner: object) -> None:
    if not hasattr(runner, "config"):
        raise ConfigError(
            f"a model, or what seqmix.compile made of one, is needed to generate, found {runner!r}"
        )


def _first_of_each(rows: Iterator[list[int | None]]) -> Iterator[int]:
    for row in rows:
        if row[0] is not None:
            yield row[0]


def _continue(
    runner: Runner, request: Request, sampler: Sampler, chunk: int | None
) -> Iterator[list[int | None]]:
    """Read the prompts, then choose and read one token per row until all rows have ended."""
    logits, states = _prefill(runner, request.prompts, chunk)
    read = _reader(runner, states)
    lengths = [len(prompt) for prompt in request.prompts]
    alive = [True] * len(request)
    for made in count(1):
        chosen = [
            None if token in stop else token
            for token, stop in zip(sampler(logits, alive), request.stops, strict=True)
        ]
        if all(token is None for token in chosen):
            return
        yield chosen
        alive = [
            token is not None and made < limit
            for token, limit in zip(chosen, request.limits, strict=True)
        ]
        if not any(alive):
            return
        ids, positions = _next_tokens(chosen, alive, lengths)
        lengths = [length + 1 for length in lengths]
        logits = read(ids, positions)


def _reader(runner: Runner, states: States) -> Callable[[Tensor, Tensor], Tensor]:
    """Reads one more token of each row at a time; logits ``[B, V]``."""
    if not isinstance(runner, Model):
        steps = runner.steps(states)
        return torch.inference_mode()(lambda ids, positions: steps(ids, positions)[:, -1])

    def read(ids: Tensor, positions: Tensor) -> Tensor:
        nonlocal states
        logits, states = _advance(runner, ids, positions, states)
        return logits

    return read


def _next_tokens(
    chosen: Sequence[int | None], alive: Sequence[bool], lengths: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Ids and positions ``[B, 1]``. A row that has ended goes on as padding: its state stays."""
    ids = [[token or 0] for token in chosen]
    places = [[length if here else -1] for length, here in zip(lengths, alive, strict=True)]
    return torch.tensor(ids), torch.tensor(places)


def _prefill(
    runner: Runner, prompts: Sequence[list[int]], chunk: int | None
) -> tuple[Tensor, States]:
    """Read all prompts, shorter ones padded on the left so that all end together."""
    longest = max(map(len, prompts))
    gaps = [longest - len(prompt) for prompt in prompts]
    ids = torch.tensor([[0] * g + p for g, p in zip(gaps, prompts, strict=True)])
    positions = torch.tensor(
        [[-1] * g + list(range(len(p))) for g, p in zip(gaps, prompts, strict=True)]
    )
    states = _fresh(runner, len(prompts))
    size = chunk or longest
    for start in range(0, longest, size):
        piece = slice(start, start + size)
        logits, states = _advance(runner, ids[:, piece], positions[:, piece], states)
    return logits, states


@torch.inference_mode()
def _advance(
    runner: Runner, input_ids: Tensor, positions: Tensor, states: States
) -> tuple[Tensor, States]:
    """Logits ``[B, V]`` of the last token and the states after; inputs move to the model."""
    if not isinstance(runner, Model):
        logits, after = runner(input_ids, positions, states)
        return logits[:, -1], after
    device = runner.embed.weight.device
    logits, states_after = runner(
        input_ids.to(device),
        positions.to(device),
        unflatten_states(runner, states),
        logits_to_keep=1,
    )
    return logits[:, -1], flatten_states(runner, states_after)


def _fresh(runner: Runner, batch: int) -> States:
    if isinstance(runner, Model):
        return initial_states(runner, batch)
    return runner.initial_state(batch)
