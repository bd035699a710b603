"""Explicit state: what a mixer remembers between calls, described once by its specs.

The initial state, its bytes, the dynamic shapes of capture and the input names of an export all
derive from :class:`StateSpec`. Axes: ``"B"`` batch, ``"P"`` past slots (one P per model), numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from seqmix.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Role", "State", "StateSpec", "check_state", "initial_state", "state_bytes"]

State: TypeAlias = "dict[str, Tensor]"
Role: TypeAlias = Literal["key", "value", "key_positions", "recurrent", "conv", "other"]


@dataclass(frozen=True, slots=True)
class StateSpec:
    """Shape, element type and purpose of one state tensor.

    ``dtype`` is an IR dtype name, or ``"model"`` for the model's own; ``role`` tells exporters what
    the ecosystem calls it. ``fill`` is the value of a fresh state (key positions start at -1).
    """

    axes: tuple[int | str, ...]
    dtype: str = "model"
    role: Role = "other"
    fill: float = 0.0

    def __post_init__(self) -> None:
        if "B" not in self.axes:
            raise ConfigError(f"state axes {self.axes} have no batch axis 'B'")
        odd = [a for a in self.axes if isinstance(a, str) and a not in ("B", "P")]
        if odd:
            raise ConfigError(f"state axes {self.axes} name {odd}; only 'B' and 'P' are symbolic")
        if not isinstance(self.dtype, str):
            raise ConfigError(
                f"state dtype is {self.dtype!r}; expected a name such as 'f32', "
                "or 'model' for the model's own"
            )

    def shape(self, batch: int, past: int) -> tuple[int, ...]:
        """The concrete shape for a batch and a number of past slots."""
        sizes = {"B": batch, "P": past}
        return tuple(sizes[a] if isinstance(a, str) else a for a in self.axes)

    @property
    def grows(self) -> bool:
        """Whether the tensor gains a slot for every token."""
        return "P" in self.axes


def initial_state(
    specs: Mapping[str, StateSpec],
    batch: int,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> State:
    """The state before the first token: growing axes are empty, the rest holds ``fill``."""
    import torch

    return {
        key: torch.full(
            spec.shape(batch, 0), spec.fill, dtype=_torch_dtype(spec, dtype), device=device
        )
        for key, spec in specs.items()
    }


def state_bytes(
    specs: Mapping[str, StateSpec], batch: int, past: int, *, dtype: torch.dtype
) -> int:
    """Bytes of the state after ``past`` tokens."""
    total = 0
    for spec in specs.values():
        count = 1
        for size in spec.shape(batch, past):
            count *= size
        total += count * _torch_dtype(spec, dtype).itemsize
    return total


def check_state(specs: Mapping[str, StateSpec], state: State, batch: int, where: str) -> None:
    """ConfigError unless ``state`` has exactly the keys, ranks and fixed sizes of ``specs``."""
    if set(state) != set(specs):
        raise ConfigError(
            f"{where}: expected state {sorted(specs)}, found {sorted(state)}; "
            "pass the state that this model returned"
        )
    from torch import Tensor

    for key, spec in specs.items():
        if not isinstance(state[key], Tensor):
            found = type(state[key]).__name__
            raise ConfigError(f"{where}: state '{key}' should be a tensor, found {found}")
        actual = tuple(state[key].shape)
        wanted = [batch if a == "B" else a for a in spec.axes]
        if len(actual) != len(wanted) or any(
            isinstance(w, int) and w != a for w, a in zip(wanted, actual, strict=True)
        ):
            raise ConfigError(
                f"{where}: state '{key}' should be {spec.axes} with B = {batch}, "
                f"found shape {actual}"
            )


def _torch_dtype(spec: StateSpec, model: torch.dtype) -> torch.dtype:
    from seqmix.dtypes import torch_dtype

    return model if spec.dtype == "model" else torch_dtype(spec.dtype)
