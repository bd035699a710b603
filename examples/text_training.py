"""Training on streams of a text: truncated back-propagation through time with carried states.

Sizes: B streams, S bytes of a segment.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqmix.errors import CheckpointError, ConfigError
from seqmix.model import Model, States, flatten_states, unflatten_states
from seqmix.whole_file import whole_file

__all__ = ["Plan", "Streams", "Trainer", "detached", "learning_rate", "read_plan"]

FORMAT = 1
BITS = 1 / math.log(2)
LOWEST = 0.1
"""The learning rate ends at this share of its peak."""


@dataclass(frozen=True)
class Plan:
    """All that decides what is computed, but for the text; kept in the checkpoint."""

    steps: int
    streams: int = 8
    segment: int = 64
    rate: float = 3e-3
    warm_up: int = 40
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0
    log_every: int = 5
    validate_every: int = 50


class Streams:
    """A text as B contiguous streams, read side by side in segments of S bytes.

    Stream b starts at the b-th of B equal parts. A segment starts where the one before ended, so
    the states after a segment are the states before the next; behind the last one all streams
    begin anew. The place in the text is a function of the step alone.
    """

    def __init__(self, text: bytes, streams: int, segment: int, what: str = "the text") -> None:
        """ConfigError, which begins with ``what``, for less than one segment per stream."""
        each = (len(text) - 1) // streams
        self.segments = each // segment
        self.segment = segment
        if self.segments < 1:
            raise ConfigError(
                f"{what} has {len(text)} bytes; {streams} x {segment} are read at once, and one "
                "follows: give a longer text, or fewer streams or shorter segments"
            )
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        starts = torch.arange(streams).unsqueeze(1) * each
        self._bytes = data[starts + torch.arange(self.segments * segment + 1)]

    def at(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets (the bytes that follow) and positions of a step, each ``[B, S]``."""
        start = (step % self.segments) * self.segment
        piece = self._bytes[:, start : start + self.segment + 1].long()
        positions = torch.arange(start, start + self.segment).expand(len(piece), -1)
        return piece[:, :-1], piece[:, 1:], positions.contiguous()

    def begins(self, step: int) -> bool:
        """Whether the streams begin at this step, from empty states."""
        return step % self.segments == 0


class Trainer:
    """A model in training, with everything that the next step depends on."""

    def __init__(self, model: Model, plan: Plan, train: bytes, held_out: bytes) -> None:
        """Start at step 0; :meth:`restore` goes on from a checkpoint."""
        self.model = model
        self.plan = plan
        self.train = Streams(train, plan.streams, plan.segment)
        rows = max(1, min(plan.streams, (len(held_out) - 1) // plan.segment))
        self.held_out = Streams(held_out, rows, plan.segment, "the held-out text")
        self.optimizer = torch.optim.AdamW(_groups(model, plan.weight_decay), betas=(0.9, 0.95))
        self.states: States | None = None
        self.step = 0
        self.seconds = 0.0
        self.losses: list[float] = []
        self.curve: list[dict[str, float | None]] = []
        self._text = hashlib.sha256(train + b"\0" + held_out).hexdigest()

    @property
    def done(self) -> bool:
        """Whether all steps of the plan are made."""
        return self.step >= self.plan.steps

    def advance(self) -> float:
        """One step; its loss, in nats per byte."""
        started = time.perf_counter()
        inputs, targets, positions = self.train.at(self.step)
        before = None if self.train.begins(self.step) else self.states
        logits, after = self.model(inputs, positions, before)
        loss = _loss(logits, targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.plan)
        self.optimizer.step()
        # The next segment starts from what this one knew, but no gradient flows back into it.
        self.states = detached(after)
        self.step += 1
        self.seconds += time.perf_counter() - started
        value = loss.item()
        self.losses.append(value)
        self._log()
        return value

    @torch.no_grad()
    def validate(self) -> float:
        """The mean loss of the held-out text, in nats per byte, its states carried as well."""
        total, states = 0.0, None
        for step in range(self.held_out.segments):
            inputs, targets, positions = self.held_out.at(step)
            logits, states = self.model(inputs, positions, states)
            total += _loss(logits, targets).item()
        return total / self.held_out.segments

    @property
    def tokens(self) -> int:
        """The bytes that were trained on so far."""
        return self.step * self.plan.streams * self.plan.segment

    @property
    def just_validated(self) -> bool:
        """Whether the last step ended with a look at the held-out text."""
        row = self.curve[-1] if self.curve else {}
        return row.get("step") == self.step and row["validation_loss"] is not None

    def figures(self) -> str:
        """The latest losses, in words."""
        if not self.curve:
            return "".join(f"loss {loss:.3f}" for loss in self.losses[-1:])
        known = [row["validation_bits_per_byte"] for row in self.curve]
        held_out = [f"held out {value:.3f} bits per byte" for value in known if value is not None]
        return ", ".join([f"loss {self.curve[-1]['train_loss']:.3f}", *held_out[-1:]])

    def save(self, path: Path) -> None:
        """Write a checkpoint; the file appears whole or not at all."""
        content = {
            "format": FORMAT,
            "plan": asdict(self.plan),
            "config": self.model.config.to_json(),
            "text": self._text,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "states": None if self.states is None else flatten_states(self.model, self.states),
            "step": self.step,
            "seconds": self.seconds,
            "losses": self.losses,
            "curve": self.curve,
        }
        with whole_file(path) as file:
            torch.save(content, file)

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint; CheckpointError when it is of another run."""
        content = _read(path)
        _same(path, "plan", content["plan"], asdict(self.plan))
        _same(path, "model", content["config"], self.model.config.to_json())
        _same(path, "text", content["text"], self._text)
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        states = content["states"]
        self.states = None if states is None else unflatten_states(self.model, states)
        self.step, self.seconds = content["step"], content["seconds"]
        self.losses, self.curve = content["losses"], content["curve"]

    def _log(self) -> None:
        """A row of the curve every few steps, some of them with the loss of the held-out text."""
        plan = self.plan
        validates = self.step % plan.validate_every == 0 or self.done
        if self.step % plan.log_every and not validates:
            return
        mean = sum(self.losses) / len(self.losses)
        held_out = self.validate() if validates else None
        self.curve.append(
            {
                "step": self.step,
                "tokens": self.tokens,
                "seconds": round(self.seconds, 3),
                "learning_rate": learning_rate(self.step - 1, plan),
                "train_loss": mean,
                "train_bits_per_byte": mean * BITS,
                "validation_loss": held_out,
                "validation_bits_per_byte": None if held_out is None else held_out * BITS,
            }
        )
        self.losses = []


def learning_rate(step: int, plan: Plan) -> float:
    """Linear warm-up, then half a cosine down to a tenth of the peak."""
    if step < plan.warm_up:
        return plan.rate * (step + 1) / plan.warm_up
    share = (step - plan.warm_up) / max(1, plan.steps - 1 - plan.warm_up)
    return plan.rate * (LOWEST + (1 - LOWEST) * (1 + math.cos(math.pi * min(1.0, share))) / 2)


def detached(states: States) -> States:
    """The same states without the graph that made them."""
    return [{key: tensor.detach() for key, tensor in state.items()} for state in states]


def read_plan(path: Path) -> Plan:
    """The plan of a checkpoint."""
    return Plan(**_read(path)["plan"])


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def _groups(model: nn.Module, weight_decay: float) -> Iterator[dict[str, Any]]:
    """Matrices decay; biases, norms and embeddings do not."""
    decaying: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim > 1 and "bias" not in name and not name.startswith("embed")
        (decaying if matrix else others).append(parameter)
    yield {"params": decaying, "weight_decay": weight_decay}
    yield {"params": others, "weight_decay": 0.0}


def _read(path: Path) -> dict[str, Any]:
    try:
        # Tensors, numbers and text only: a checkpoint of somebody else cannot run anything.
        content = torch.load(path, weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{path}: cannot be read: {error}; --no-resume starts anew"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{path}: is no checkpoint of this example; --no-resume starts anew")
    return content


def _same(path: Path, what: str, found: Any, expected: Any) -> None:
    if found == expected:
        return
    shown = ""
    if isinstance(found, dict):
        keys = [key for key in expected if found.get(key) != expected[key]]
        shown = " (" + ", ".join(f"{k}: {found.get(k)}, now {expected[k]}" for k in keys) + ")"
    raise CheckpointError(
        f"{path}: was made with another {what}{shown}; --no-resume starts anew, or choose another "
        "folder with --out"
    )
