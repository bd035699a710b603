"""What a model asks of its arguments, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from seqmix.errors import ConfigError, SeqmixError
from seqmix.state import State, StateSpec, check_state

__all__ = ["check_are_tensors", "check_arguments", "check_ids"]


def check_are_tensors(error: type[SeqmixError], where: str, **arguments: object) -> None:
    """``error``, begun by ``where``, for an argument that is no tensor."""
    for name, given in arguments.items():
        if not isinstance(given, Tensor):
            raise error(f"{where}: {name} should be a tensor, found {_kind_of(given)}")


def check_arguments(
    where: str,
    specs: Sequence[Mapping[str, StateSpec]],
    input_ids: Tensor,
    positions: Tensor,
    states: Sequence[State],
) -> None:
    """ConfigError unless dtypes, ranks, sizes and states fit together; ``where`` begins it."""
    for name, tensor in (("input_ids", input_ids), ("positions", positions)):
        if tensor.dtype != torch.int64 or tensor.ndim != 2 or 0 in tensor.shape:
            raise ConfigError(
                f"{where}: {name} should be int64 [B, S] with B >= 1 and S >= 1, "
                f"found {tensor.dtype} {list(tensor.shape)}"
            )
    if positions.shape != input_ids.shape:
        raise ConfigError(
            f"{where}: positions {list(positions.shape)} should have the shape of "
            f"input_ids {list(input_ids.shape)}"
        )
    if isinstance(states, Mapping):
        raise ConfigError(
            f"{where}: states should be a list with one mapping per layer that has a state, found "
            "one mapping; seqmix.model.unflatten_states turns flat states into such a list"
        )
    if len(states) != len(specs):
        raise ConfigError(
            f"{where}: expected {len(specs)} states, one per layer that has one, "
            f"found {len(states)}"
        )
    for layer, (spec, state) in enumerate(zip(specs, states, strict=True)):
        check_state(spec, state, input_ids.shape[0], f"{where}, layer {layer}")
    _check_common_sizes(where, specs, input_ids.shape[0], states)


def check_ids(where: str, input_ids: Tensor, vocab_size: int) -> None:
    """ConfigError for ids out of range; elsewhere than on a CPU that would cost a wait."""
    if input_ids.device.type != "cpu" or not input_ids.numel():
        return
    low, high = int(input_ids.min()), int(input_ids.max())
    if low < 0 or high >= vocab_size:
        raise ConfigError(
            f"{where}: input_ids should be in 0..{vocab_size - 1}, "
            f"found {low if low < 0 else high}; padding has position -1, but a valid id"
        )


def _kind_of(given: object) -> str:
    """What something is that is no tensor."""
    return "None" if given is None else type(given).__name__


def _check_common_sizes(
    where: str,
    specs: Sequence[Mapping[str, StateSpec]],
    batch: int,
    states: Sequence[State],
) -> None:
    """ConfigError unless every state has the same B and P: one P per model."""
    sizes = {"B": (batch, "input_ids")}
    for layer, (spec, state) in enumerate(zip(specs, states, strict=True)):
        for key, one in spec.items():
            for axis, name in enumerate(one.axes):
                if not isinstance(name, str):
                    continue
                place = f"state.{layer}.{key}"
                size = state[key].shape[axis]
                known, source = sizes.setdefault(name, (size, place))
                if size != known:
                    raise ConfigError(
                        f"{where}: {name} is {known} in {source}, but {size} in {place}"
                    )
