"""Text continuation, token by token, with a torch model or with a compiled one.

Sizes: B prompts, S tokens of a piece, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast, overload

import torch
from torch import Tensor

from seqmix.errors import ConfigError
from seqmix.model import Model, flatten_states, initial_states, unflatten_states
from seqmix.sample import Sampler

if TYPE_CHECKING:
    from seqmix.backend import Executable

__all__ = ["Runner", "generate", "generate_all"]

Runner: TypeAlias = "Model | Executable"
States: TypeAlias = dict[str, Tensor]


@overload
def generate(
    runner: Runner,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = ...,
    seed: int | None = ...,
    stop: Collection[int] = ...,
    chunk: int | None = ...,
) -> Iterator[int]: ...
@overload
def generate(
    runner: Runner,
    prompt: Sequence[Sequence[int]] | Tensor,
    *,
    max_new_tokens: int,
    temperature: float = ...,
    seed: int | None = ...,
    stop: Collection[int] = ...,
    chunk: int | None = ...,
) -> Iterator[list[int | None]]: ...
def generate(
    runner: Runner,
    prompt: Sequence[int] | Sequence[Sequence[int]] | Tensor,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int | None = None,
    stop: Collection[int] = (),
    chunk: int | None = None,
) -> Iterator[int] | Iterator[list[int | None]]:
    """The tokens that continue a prompt, one at a time.

    One prompt (a list of ids) gives ids. Several prompts, or a tensor ``[B, S]``, give a list per
    step with one id per prompt, None where that prompt has ended. A prompt ends before a token of
    ``stop``. ``chunk`` is the most tokens read at once. Temperature 0 takes the likeliest token.
    Raises ConfigError at the call, not at the first token.
    """
    single = not isinstance(prompt, Tensor) and not any(isinstance(p, Sequence) for p in prompt)
    prompts = _prompts(prompt, single)
    if max_new_tokens < 0 or (chunk is not None and chunk < 1):
        raise ConfigError(
            "max_new_tokens should be at least 0 and chunk at least 1, "
            f"found {max_new_tokens} and {chunk}"
        )
    sampler = Sampler(temperature, seed)
    rows = _continue(runner, prompts, max_new_tokens, sampler, frozenset(stop), chunk)
    return _first_of_each(rows) if single else rows


def generate_all(
    runner: Runner,
    prompts: Sequence[Sequence[int]] | Tensor,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int | None = None,
    stop: Collection[int] = (),
    chunk: int | None = None,
) -> list[list[int]]:
    """The whole continuation of each prompt; see :func:`generate`."""
    done: list[list[int]] = [[] for _ in prompts]
    steps = generate(
        runner,
        prompts,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        stop=stop,
        chunk=chunk,
    )
    for step in steps:
        for row, token in zip(done, step, strict=True):
            if token is not None:
                row.append(token)
    return done


def _prompts(
    prompt: Sequence[int] | Sequence[Sequence[int]] | Tensor, single: bool
) -> list[list[int]]:
    if isinstance(prompt, Tensor) and (prompt.ndim != 2 or prompt.dtype != torch.int64):
        raise ConfigError(
            f"a prompt tensor should be int64 [B, S], found {prompt.dtype} {list(prompt.shape)}"
        )
    given = prompt.tolist() if isinstance(prompt, Tensor) else prompt
    rows = cast(Sequence[Sequence[int]], [given] if single else given)
    found = [[int(token) for token in row] for row in rows]
    if not found or not all(found):
        raise ConfigError("a prompt needs at least one token; begin with the model's bos token")
    return found


def _first_of_each(rows: Iterator[list[int | None]]) -> Iterator[int]:
    for row in rows:
        if row[0] is not None:
            yield row[0]


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


def _continue(
    runner: Runner,
    prompts: list[list[int]],
    max_new_tokens: int,
    sampler: Sampler,
    stop: frozenset[int],
    chunk: int | None,
) -> Iterator[list[int | None]]:
    """Read the prompts, then choose and read one token per row until all rows have ended."""
    if max_new_tokens == 0:
        return
    logits, states = _prefill(runner, prompts, chunk)
    lengths = [len(prompt) for prompt in prompts]
    alive = [True] * len(prompts)
    for made in range(1, max_new_tokens + 1):
        chosen = sampler(logits)
        alive = [here and token not in stop for here, token in zip(alive, chosen, strict=True)]
        if not any(alive):
            return
        yield [t if here else None for here, t in zip(alive, chosen, strict=True)]
        if made == max_new_tokens:
            return
        # A row that has ended goes on as padding, which changes nothing for the others.
        ids = [[t if here else 0] for here, t in zip(alive, chosen, strict=True)]
        places = [[n if here else -1] for here, n in zip(alive, lengths, strict=True)]
        lengths = [n + 1 for n in lengths]
        logits, states = _advance(runner, torch.tensor(ids), torch.tensor(places), states)


def _prefill(runner: Runner, prompts: list[list[int]], chunk: int | None) -> tuple[Tensor, States]:
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


def _fresh(runner: Runner, batch: int) -> States:
    if isinstance(runner, Model):
        return initial_states(runner, batch)
    return runner.initial_state(batch)
