"""What is asked of a generation, checked before anything is computed.

Sizes: B prompts, S tokens of the longest one.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from seqmix import registry
from seqmix.arguments import holds_numbers
from seqmix.config import ModelConfig, build_config
from seqmix.errors import ConfigError, PluginError

__all__ = [
    "Prompts",
    "Request",
    "integers",
    "is_one_prompt",
    "learned_positions",
    "make_request",
]

Prompts: TypeAlias = "Sequence[int] | Sequence[Sequence[int]] | Tensor"


@dataclass(frozen=True, slots=True)
class Request:
    """Prompts as lists of ids, and for each of them how far it goes and what ends it."""

    prompts: list[list[int]]
    limits: list[int]
    stops: list[frozenset[int]]

    def __len__(self) -> int:
        """How many prompts there are."""
        return len(self.prompts)


def is_one_prompt(prompts: Prompts) -> bool:
    """Whether this is a single list of ids; ConfigError where it is neither one nor several."""
    if not isinstance(prompts, Tensor | Sequence) or isinstance(prompts, str | bytes):
        found = "None" if prompts is None else type(prompts).__name__
        raise ConfigError(
            f"a prompt should be a list of ids, several of them lists of ids or an int64 tensor, "
            f"found {found}; a tokenizer makes ids of text, torch.from_numpy a tensor of an array"
        )
    return not isinstance(prompts, Tensor) and not any(
        isinstance(p, Sequence | Tensor) and getattr(p, "ndim", 1) for p in prompts
    )


def make_request(
    config: ModelConfig,
    prompts: Prompts,
    attention_mask: Tensor | None,
    max_new_tokens: int | Sequence[int],
    stop: Collection[int] | Sequence[Collection[int]],
) -> Request:
    """The request; ConfigError that names the row and what is wrong with it."""
    rows = _rows_of(prompts, attention_mask)
    _check_ids(rows, config)
    limits = _limits(max_new_tokens, len(rows))
    _check_length(rows, limits, config)
    return Request(rows, limits, _stops(stop, len(rows)))


def learned_positions(config: ModelConfig) -> int | None:
    """How many positions the model has learned; None where an encoding has no such end.

    An encoding with an end says so by the option ``max_positions``.
    """
    if config.position is None:
        return None
    try:
        cls: Any = registry.get("positions", config.position.kind)
        options = build_config(cls.Config, config.position.options, config.position.kind)
    except (PluginError, ConfigError):
        return None  # A compiled model runs without the plugin that it came from.
    found = getattr(options, "max_positions", None)
    return None if found is None else int(found)


def integers(values: Iterable[Any], where: str) -> list[int]:
    """The values as integers; ConfigError for what is none, such as 1.5."""
    try:
        return [operator.index(value) for value in values]
    except TypeError as error:
        raise ConfigError(f"{where} should consist of integers: {error}") from error


def _rows_of(prompts: Prompts, mask: Tensor | None) -> list[list[int]]:
    if isinstance(prompts, Tensor):
        found = _rows_of_tensor(prompts, mask)
    elif mask is not None:
        raise ConfigError(
            "attention_mask belongs to a tensor of prompts; lists of ids need none, leave it out"
        )
    else:
        given = cast("Sequence[Sequence[int]]", [prompts] if is_one_prompt(prompts) else prompts)
        found = [integers(ids, f"prompt {row}") for row, ids in enumerate(given)]
    if not found or not all(found):
        empty = f"; prompt {found.index([])} of {len(found)} is empty" if found else ""
        raise ConfigError(
            f"a prompt needs at least one token{empty}; begin with the model's bos token"
        )
    return found


def _rows_of_tensor(prompts: Tensor, mask: Tensor | None) -> list[list[int]]:
    """The ids where the mask is 1, wherever the padding stands."""
    if prompts.ndim != 2 or prompts.dtype != torch.int64:
        raise ConfigError(
            f"a prompt tensor should be int64 [B, S], found {prompts.dtype} {list(prompts.shape)}"
        )
    if mask is not None and not isinstance(mask, Tensor):
        raise ConfigError(
            f"attention_mask should be a tensor {list(prompts.shape)}, found {type(mask).__name__}"
        )
    if not all(holds_numbers(given) for given in (prompts, mask) if given is not None):
        raise ConfigError(
            "prompts and attention_mask should lie in memory: neither meta nor sparse"
        )
    if mask is None:
        return cast("list[list[int]]", prompts.tolist())
    if mask.shape != prompts.shape:
        raise ConfigError(
            f"attention_mask should have the shape of the prompts {list(prompts.shape)}, "
            f"found {list(mask.shape)}"
        )
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise ConfigError("attention_mask should be 1 at tokens and 0 at padding, found others")
    return [ids[kept.bool()].tolist() for ids, kept in zip(prompts.cpu(), mask.cpu(), strict=True)]


def _check_ids(rows: Sequence[Sequence[int]], config: ModelConfig) -> None:
    for row, ids in enumerate(rows):
        for index, token in enumerate(ids):
            if not 0 <= token < config.vocab_size:
                raise ConfigError(
                    f"prompt {row}: ids should be in 0..{config.vocab_size - 1}, "
                    f"found {token} at {index}; is it another model's tokenizer?"
                )


def _check_length(
    rows: Sequence[Sequence[int]], limits: Sequence[int], config: ModelConfig
) -> None:
    """ConfigError when a row would leave the positions that the model has learned."""
    known = learned_positions(config)
    if known is None:
        return
    for row, (ids, limit) in enumerate(zip(rows, limits, strict=True)):
        # The last new token is never read, so it needs no position.
        if (needed := len(ids) + limit - 1) > known:
            raise ConfigError(
                f"prompt {row}: {len(ids)} tokens and {limit} new ones need {needed} positions, "
                f"model '{config.name}' has learned {known}; shorten the prompt or max_new_tokens"
            )


def _limits(max_new_tokens: int | Sequence[int], batch: int) -> list[int]:
    if isinstance(max_new_tokens, Sequence):
        limits = _per_row(integers(max_new_tokens, "max_new_tokens"), batch, "max_new_tokens")
    else:
        limits = integers([max_new_tokens], "max_new_tokens") * batch
    if min(limits) < 1:
        raise ConfigError(f"max_new_tokens should be at least 1, found {min(limits)}")
    return limits


def _stops(stop: Collection[int] | Sequence[Collection[int]], batch: int) -> list[frozenset[int]]:
    """One set for every row, or for all of them the same."""
    if isinstance(stop, str | bytes) or not isinstance(stop, Collection):
        raise ConfigError(f"stop should be a collection of ids, found {stop!r}; stop=[id] is one")
    given = list(cast("Collection[Any]", stop))
    if not any(isinstance(one, Collection) for one in given):
        return [frozenset(integers(given, "stop"))] * batch
    if not all(isinstance(one, Collection) for one in given):
        raise ConfigError(f"stop should be ids, or one collection of ids per prompt, found {given}")
    return _per_row([frozenset(integers(one, "stop")) for one in given], batch, "stop")


def _per_row(values: list[Any], batch: int, name: str) -> list[Any]:
    if len(values) != batch:
        raise ConfigError(
            f"{name} has {len(values)} entries for {batch} prompts; give one per prompt, or one "
            "for all"
        )
    return values
