"""Decoding in memory that stays in place: one CUDA graph per token, no wait for the device.

A growing state has room for C slots. A slot that holds no token yet has key position -1, which
nothing attends to: so a token is computed as if C - 1 slots were its past, and its own key goes
into the first free one. Sizes are the same for every token until the room is full.

B batch, C slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from seqmix.arguments import check_one_token, flat_states, holds_numbers
from seqmix.backend import Steps
from seqmix.inputs import resolved
from seqmix_ir.binding import bind_dims
from seqmix_ir.graph import Op
from seqmix_triton.growing import Growing, find_growing, room_for
from seqmix_triton.run import GraphRun, Rule

if TYPE_CHECKING:
    from seqmix_triton.session import TritonExecutable

__all__ = ["StaticSteps", "make_steps"]

_WARM_UP = 2
"""Runs before a recording: Triton compiles in the first, libraries choose algorithms."""


def make_steps(executable: TritonExecutable, states: Mapping[str, Tensor]) -> Steps:
    """Steps in place; the plain ones where a state grows by more than an appended slot."""
    growing = find_growing(executable.generated.module.graph("forward"))
    return (
        Steps(executable, states) if growing is None else StaticSteps(executable, states, growing)
    )


class StaticSteps(Steps):
    """Reads tokens with all tensors at fixed places, so that a device replays one recording."""

    def __init__(
        self, executable: TritonExecutable, states: Mapping[str, Tensor], growing: Growing
    ) -> None:
        """Copy ``states`` into rooms with free slots."""
        self._graph = executable.generated.module.graph("forward")
        self._where = f"compiled '{executable.config.name}'"
        self._check = executable.checks["forward"]
        self._growing = growing
        self._device = executable.device
        self._slot = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._rules: dict[Op, Rule] = {op: self._append for op in growing.appends}
        self._runner = executable.runner.with_rules(self._rules)
        self._given: dict[str, Tensor] | None = flat_states(self._where, states)
        self._batch = 0

    def __call__(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """One token of each row; logits ``[B, 1, V]``, which the next call overwrites."""
        check_one_token(self._where, input_ids, positions)
        self._check_tokens(input_ids, positions)
        if self._given is not None:
            here = {name: t.detach().to(self._device) for name, t in resolved(self._given).items()}
            self._place(here)
            self._given = None
        if self._growing.axes and self._filled >= self.room:
            self._place(self.states())
        if len(input_ids) != self._batch:
            self._bind(input_ids, positions)
        self._ids.copy_(input_ids, non_blocking=True)
        self._positions.copy_(positions, non_blocking=True)
        with torch.no_grad():
            self._play()
        self._filled += 1
        return self._logits

    def states(self) -> dict[str, Tensor]:
        """Copies: of growing states what is filled."""
        if self._given is not None:
            return {name: tensor.clone() for name, tensor in self._given.items()}
        return {
            name: self._growing.trimmed(name, tensor, self._filled).clone()
            for name, tensor in self._rooms.items()
        }

    def _check_tokens(self, input_ids: Tensor, positions: Tensor) -> None:
        """BackendError for inputs that do not fit; the states are looked at with the first."""
        wanted = (self._batch, 1)
        given = (input_ids, positions)
        if all(t.dtype == torch.int64 and t.shape == wanted and holds_numbers(t) for t in given):
            self._check.tokens(input_ids, positions)
            return
        past = self._given if self._given is not None else self._past()
        self._check({"input_ids": input_ids, "positions": positions, **past})

    def _place(self, states: Mapping[str, Tensor]) -> None:
        """Put the states into new rooms; what was recorded for the old ones is void."""
        self._filled = self._growing.filled(states)
        self.room = room_for(self._filled)
        self._rooms = {
            name: self._growing.in_room(name, tensor, self.room) for name, tensor in states.items()
        }
        self._slot.fill_(self._filled)
        self._batch = 0

    def _bind(self, input_ids: Tensor, positions: Tensor) -> None:
        """Find the sizes, and record the work where that is possible."""
        given = {"input_ids": input_ids, "positions": positions, **self._past()}
        shapes = {name: tuple(given[name].shape) for name in self._graph.inputs}
        self._sizes = bind_dims(self._graph, shapes)
        self._ids, self._positions = (t.clone().to(self._device) for t in (input_ids, positions))
        self._batch = len(input_ids)
        self._recording = self._record() if self._device.type == "cuda" else None

    def _past(self) -> dict[str, Tensor]:
        """The states as one token finds them: all slots but one are its past."""
        return {
            name: self._growing.trimmed(name, room, self.room - 1)
            for name, room in self._rooms.items()
        }

    def _play(self) -> None:
        if self._recording is None:
            self._compute()
        else:
            self._recording.replay()

    def _compute(self) -> None:
        """One token: logits, and every state in its place."""
        run = GraphRun(self._runner, self._sizes)
        inputs = {"input_ids": self._ids, "positions": self._positions, **self._rooms}
        block = self._graph.block
        results = run.block(block, tuple(inputs[name] for name in self._graph.inputs))
        after = dict(zip(self._graph.outputs, results, strict=True))
        self._logits = after.pop("logits").clone()
        # A result may be a view of the room that it goes to, or of another one.
        moved = {
            name: tensor.clone()
            for name, tensor in after.items()
            if tensor is not self._rooms[name]
        }
        for name, tensor in moved.items():
            self._rooms[name].copy_(tensor)
        self._slot += 1

    def _append(self, run: GraphRun, op: Op, room: Tensor, new: Tensor) -> Tensor:
        """Instead of a concatenation: the new slot goes into the first free one."""
        return room.index_copy_(self._growing.axes[self._growing.appends[op]], self._slot, new)

    def _record(self) -> torch.cuda.CUDAGraph:
        """A CUDA graph of :meth:`_compute`, after runs that leave no trace."""
        kept = {name: room.clone() for name, room in self._rooms.items()}
        aside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.no_grad(), torch.cuda.stream(aside):
            for _ in range(_WARM_UP):
                self._compute()
                for name, room in self._rooms.items():
                    room.copy_(kept[name])
                self._slot.fill_(self._filled)
        torch.cuda.current_stream(self._device).wait_stream(aside)
        recording = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(recording):
            self._compute()
        return recording
