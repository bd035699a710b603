"""What a model asks of its arguments, checked before anything is computed.

Sizes: B batch, S sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from seqmix.errors import BackendError, ConfigError, SeqmixError
from seqmix.state import State, StateSpec, check_state

__all__ = [
    "LAST_POSITION",
    "check_are_tensors",
    "check_batch",
    "check_one_token",
    "check_shapes",
    "check_states",
    "check_tokens",
    "flat_states",
    "holds_numbers",
    "named_inputs",
    "token_problems",
]

LAST_POSITION = 2**53 - 1
"""The last position that float64, in which angles are computed, tells from its neighbours."""


def check_are_tensors(error: type[SeqmixError], where: str, **arguments: object) -> None:
    """``error``, begun by ``where``, for an argument that is no tensor."""
    for name, given in arguments.items():
        if not isinstance(given, Tensor):
            raise error(f"{where}: {name} should be a tensor, found {_kind_of(given)}")


def check_shapes(where: str, input_ids: Tensor, positions: Tensor) -> None:
    """ConfigError unless both are int64 ``[B, S]``, of one shape; ``where`` begins it."""
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


def check_states(
    where: str, specs: Sequence[Mapping[str, StateSpec]], batch: int, states: Sequence[State]
) -> None:
    """ConfigError unless there is a state per layer that has one, and their sizes fit together."""
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
        check_state(spec, state, batch, f"{where}, layer {layer}")
    _check_common_sizes(where, specs, batch, states)


def check_tokens(
    where: str,
    input_ids: Tensor,
    positions: Tensor,
    vocab_size: int,
    last_position: int = LAST_POSITION,
) -> None:
    """ConfigError for numbers out of range; elsewhere than on a CPU that would cost a wait."""
    if problems := token_problems(input_ids, positions, vocab_size, last_position):
        raise ConfigError(f"{where}: {'; '.join(problems)}")


def token_problems(
    input_ids: Tensor,
    positions: Tensor,
    vocab_size: int,
    last_position: int = LAST_POSITION,
    *,
    wait: bool = False,
) -> list[str]:
    """What is wrong with the numbers of int64 ``input_ids`` and ``positions``, both ``[B, S]``.

    Tensors elsewhere than on a CPU are looked at only when ``wait`` says so: that waits for the
    device.
    """
    problems = []
    low, high = _range(input_ids, wait) or (0, 0)
    if low < 0 or high >= vocab_size:
        problems.append(
            f"input_ids should be in 0..{vocab_size - 1}, "
            f"found {low if low < 0 else high}; padding has position -1, but a valid id"
        )
    low, high = _range(positions, wait) or (0, 0)
    if low < -1:
        problems.append(f"positions should be 0 or more, or -1 at padding, found {low}")
    if high > last_position:
        remedy = (
            ""
            if last_position == LAST_POSITION
            else (
                f"; the model has learned {last_position + 1} positions: cut the input, or train a "
                "model with more"
            )
        )
        problems.append(f"positions should be in 0..{last_position}, found {high}{remedy}")
    return problems


def named_inputs(
    where: str, input_ids: Tensor, positions: Tensor, states: object
) -> dict[str, Tensor]:
    """The inputs of a compiled model by name; BackendError for states of the wrong kind."""
    return {"input_ids": input_ids, "positions": positions, **flat_states(where, states)}


def flat_states(where: str, states: object) -> dict[str, Tensor]:
    """A copy of a mapping of states; BackendError where it is none."""
    if not isinstance(states, Mapping):
        raise BackendError(
            f"{where}: states should be a mapping by 'state.{{layer}}.{{key}}', as this "
            f"returned it, found {_kind_of(states)}; seqmix.model.flatten_states makes "
            "one of the states of a torch model"
        )
    for name in ("input_ids", "positions"):
        if name in states:
            raise BackendError(
                f"{where}: '{name}' is among the states, and an argument of its own; leave it out "
                "of the states"
            )
    return dict(states)


def check_one_token(where: str, input_ids: object, positions: object) -> None:
    """BackendError unless both are tensors, and have one token per row where they have rows."""
    check_are_tensors(BackendError, where, input_ids=input_ids, positions=positions)
    for name, given in (("input_ids", input_ids), ("positions", positions)):
        shape = cast(Tensor, given).shape
        if len(shape) == 2 and shape[1] != 1:
            raise BackendError(
                f"{where}: a step reads one token of each row, {name} should be [B, 1], found "
                f"{list(shape)}; call the executable itself for several"
            )


def check_batch(where: str, batch: object) -> None:
    """ConfigError unless a batch is an integer, at least 1, or stands for any in a trace."""
    if isinstance(batch, torch.SymInt):
        return
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise ConfigError(f"{where}: the batch should be an integer, at least 1, found {batch!r}")


def holds_numbers(tensor: Tensor) -> bool:
    """Whether a tensor has memory that strides lead through: not a meta, sparse or nested one."""
    return tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_nested


def _range(tensor: Tensor, wait: bool) -> tuple[int, int] | None:
    """The least and the greatest number; None where finding out would cost a wait."""
    if not (wait or tensor.is_cpu) or not tensor.numel():
        return None
    if tensor.numel() == 1:  # Decoding asks for every token, and a reduction costs ten times this.
        only = int(tensor.item())
        return only, only
    low, high = torch.aminmax(tensor)
    return int(low), int(high)


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
