"""The loop that trains a model on a task, and goes on exactly where it was stopped.

Devices, half precision and processes are left to Lightning Fabric, which leaves the loop to us.
Accelerate would do as well, but keeps one global state per process, so that two trainings with
different precision cannot stand side by side; a full trainer would bring its own loop, whose order
of random numbers and checkpoints we could not promise.

Whatever a step needs is a function of plan, task and step number, or is in the checkpoint: weights,
optimizer, torch's generator, the figures so far. The same machine with the same number of threads
gives the same bytes, interrupted or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqmix.errors import ConfigError, SeqmixError
from seqmix.model import Model
from seqmix.training.fabric import make_fabric
from seqmix.training.metrics import Metrics, Row
from seqmix.training.objective import Objective, measure, parameter_groups
from seqmix.training.plan import Training, learning_rate
from seqmix.training.rows import Batch, Order
from seqmix.training.standing import Standing
from seqmix.training.stored import read_stored, write_stored
from seqmix.training.task import Task, build_task

__all__ = ["Trainer", "TrainingError"]

CHECKPOINT = "training.ckpt"
METRICS = "metrics.csv"
BOARD = "tensorboard"


class TrainingError(SeqmixError):
    """A training that cannot go on; says at which step, and what may help."""


class Trainer:
    """A model in training, in a folder of its own."""

    def __init__(
        self,
        training: Training,
        out: Path,
        *,
        task: Task | None = None,
        fabric: Any = None,
        tensorboard: bool = False,
        resume: bool = True,
    ) -> None:
        """Start anew, or go on from the checkpoint in ``out``.

        ``task`` saves building it when it is at hand; ``fabric`` is a launched
        ``lightning_fabric.Fabric``, by default one for one device. Raises ConfigError when model,
        task and plan do not fit, CheckpointError when the checkpoint is of another training.
        """
        self.training = training
        self.plan = training.training
        self.out = out
        self.fabric = fabric or make_fabric(self.plan.precision)
        self.task = task or build_task(training.task)
        _check(training, self.task, self.fabric.world_size)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.plan.seed)
            self.model = Model(training.model)
            self._random = torch.get_rng_state()
        self.standing = Standing()
        self._order = Order(len(self.task.train), self.plan.batch, self.plan.seed)
        optimizer = torch.optim.AdamW(
            parameter_groups(self.model, self.plan.weight_decay), betas=self.plan.betas
        )
        self._objective, self._optimizer = self.fabric.setup(Objective(self.model), optimizer)
        if resume and (out / CHECKPOINT).is_file():
            self._restore()
        self._metrics: Metrics | None = None
        if self.fabric.is_global_zero:
            board = out / BOARD if tensorboard else None
            self._metrics = Metrics(out / METRICS, self.standing.rows, board)

    @property
    def done(self) -> bool:
        """Whether all steps are made, or the plan's reason to stop early has come."""
        return self.standing.step >= self.plan.steps or self.standing.stopped

    def run(self, watch: Callable[[Trainer], None] | None = None) -> Standing:
        """Train to the end; ``watch`` is called after every step. Saves as the plan says."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            while not self.done:
                self.advance()
                if watch is not None:
                    watch(self)
        if self._metrics is not None:
            self._metrics.close()
        return self.standing

    def advance(self) -> None:
        """One update, and what is due after it: figures, a test, a checkpoint."""
        rate = learning_rate(self.standing.step, self.plan)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        batch = self.task.train.take(self._order.at(self.standing.step))
        loss, auxiliary = self._backward(batch)
        norm = self._clip()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.standing.count(loss, auxiliary, norm, batch.inputs.numel())
        self._after_step(rate)

    def save(self) -> None:
        """Write a checkpoint; it appears whole or not at all."""
        self._random = torch.get_rng_state()
        parts = {"objective": self._objective, "optimizer": self._optimizer}
        kept = {"random": self._random, "standing": self.standing.to_dict()}
        write_stored(self.fabric, self.out / CHECKPOINT, self.training, self.task, parts, kept)

    def _restore(self) -> None:
        parts = {"objective": self._objective, "optimizer": self._optimizer}
        kept = read_stored(self.fabric, self.out / CHECKPOINT, self.training, self.task, parts)
        self._random = kept["random"]
        self.standing = Standing.from_dict(kept["standing"])

    def _backward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gradients of the mean over all targets of the batch; its loss and auxiliary loss.

        Every micro-batch and process adds its share of one sum, so that how the batch is cut
        changes nothing but rounding.
        """
        asked, cuts, world = batch.asked(), self.plan.accumulate, self.fabric.world_size
        size = len(batch) // cuts
        total = torch.zeros(2, device=self.fabric.device, dtype=torch.float64)
        for cut in range(cuts):
            part = batch.part(cut * size, (cut + 1) * size).part(
                self.fabric.global_rank, None, world
            )
            here = part.to(self.fabric.device)
            with self.fabric.no_backward_sync(self._objective, enabled=cut < cuts - 1):
                loss, _, auxiliary = self._objective(here.inputs, here.targets, here.positions)
                # Processes average their gradients, so each counts itself for all.
                self.fabric.backward(loss * (world / max(1, asked)) + auxiliary / cuts)
            share = torch.stack(
                [loss.detach() / max(1, asked), auxiliary.detach() / (cuts * world)]
            )
            total += share
        if world > 1:
            total = self.fabric.all_reduce(total, reduce_op="sum")
        return total[0], total[1]

    def _clip(self) -> Tensor:
        """The norm of the gradient before it was clipped."""
        limit = math.inf if self.plan.clip is None else self.plan.clip
        norm: Tensor = self.fabric.clip_gradients(
            self._objective, self._optimizer, max_norm=limit, error_if_nonfinite=False
        )
        return norm.detach()

    def _after_step(self, rate: float) -> None:
        plan, step = self.plan, self.standing.step
        last = step >= plan.steps
        tests = last or step % plan.test_every == 0
        if tests or step % plan.log_every == 0:
            self._log(rate, tests)
        if last or self.standing.stopped or step % plan.save_every == 0:
            self.standing.check(self._failed)
            self.save()

    def _log(self, rate: float, tests: bool) -> None:
        self.standing.check(self._failed)
        figures = self._test() if tests else (None, None)
        row: Row = self.standing.row(rate, *figures)
        if tests:
            self.standing.judge(self.plan, *figures)
        if self._metrics is not None:
            self._metrics.add(row)

    def _test(self) -> tuple[float, float]:
        """Loss and accuracy of the held-out rows, by all processes together."""
        plan, fabric = self.plan, self.fabric
        size = plan.test_batch or plan.batch // plan.accumulate
        sums = measure(
            self._objective, self.task.held_out, size, fabric.global_rank, fabric.world_size
        )
        loss, right, asked = sums
        if fabric.world_size > 1:
            tensor = torch.tensor(sums, dtype=torch.float64, device=fabric.device)
            loss, right, asked = fabric.all_reduce(tensor, reduce_op="sum").tolist()
        return loss / max(1, asked), right / max(1, asked)

    def _failed(self) -> TrainingError:
        return TrainingError(
            f"{self.out}: the loss or its gradient is no longer finite at step "
            f"{self.standing.step}; lower 'rate', raise 'warm_up', or set 'clip', and start anew"
        )


def _check(training: Training, task: Task, world: int) -> None:
    """ConfigError unless model, task and plan fit."""
    config, plan = training.model, training.training
    where = f"model '{config.name}' on task '{training.task.kind}'"
    if task.vocab_size > config.vocab_size:
        raise ConfigError(
            f"{where}: the task uses {task.vocab_size} ids, the model has vocab_size "
            f"{config.vocab_size}; make it at least that"
        )
    if plan.batch % (plan.accumulate * world):
        raise ConfigError(
            f"{where}: batch = {plan.batch} cannot be cut into {plan.accumulate} micro-batches "
            f"for {world} processes; make it a multiple of {plan.accumulate * world}"
        )
    if not len(task.held_out):
        raise ConfigError(f"{where}: there is nothing held out to test on; give some data to it")
