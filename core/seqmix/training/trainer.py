"""The loop that trains a model on a task, and goes on exactly where it was stopped.

Devices, half precision and processes are left to Lightning Fabric, which leaves the loop to us.
Accelerate would do as well, but keeps one global state per process, so that two trainings with
different precision cannot stand side by side; a full trainer would bring its own loop, whose order
of random numbers and checkpoints we could not promise.

Whatever a step needs is a function of plan, task and step number, or is in the checkpoint: weights,
optimizer, torch's generators, the figures so far. The same machine with the same number of threads
and processes gives the same bytes, interrupted or not; another number of processes, or another way
of sharing the work, the same but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqmix.errors import SeqmixError
from seqmix.model import Model
from seqmix.training.fabric import make_fabric
from seqmix.training.fit import check_fit
from seqmix.training.folder_lock import FolderLock
from seqmix.training.metrics import Metrics, Row, check_tensorboard
from seqmix.training.objective import Objective, measure, parameter_groups
from seqmix.training.plan import Training, learning_rate
from seqmix.training.processes import first_for_all, settle
from seqmix.training.randomness import Randomness
from seqmix.training.rows import Batch, Order
from seqmix.training.sharding import build_model, in_one_piece, is_sharded, whole_model
from seqmix.training.standing import Standing
from seqmix.training.stored import read_stored, write_stored
from seqmix.training.task import Task, build_task
from seqmix.whole_file import remove_parts

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
        Nothing is written before the first step.
        """
        self.training = training
        self.plan = training.training
        self.out = out
        self.fabric = fabric or make_fabric(self.plan.precision)
        self.task = task or self._build_task()
        check_fit(training, self.task, self.fabric.world_size)
        self._order = Order(len(self.task.train), self.plan.batch, self.plan.seed)
        self._random = Randomness(self.fabric.device)
        self.model = self._fresh_model()
        self._sharded = is_sharded(self.model)
        self._set_up()
        self.standing = Standing()
        if resume and self.fabric.broadcast((out / CHECKPOINT).is_file()):
            self._restore()
        if tensorboard:
            check_tensorboard()
        self._tensorboard = tensorboard
        self._opened = False
        self._lock: FolderLock | None = None
        self._metrics: Metrics | None = None

    @property
    def done(self) -> bool:
        """Whether all steps are made, or the plan's reason to stop early has come."""
        return self.standing.step >= self.plan.steps or self.standing.stopped

    def run(self, watch: Callable[[Trainer], None] | None = None) -> Standing:
        """Train to the end; ``watch`` is called after every step. Saves as the plan says.

        Raises ConfigError when another process trains into the same folder, TrainingError when the
        loss is no longer a number, CheckpointError when a checkpoint cannot be written.
        """
        try:
            self._open()
            while not self.done:
                self.advance()
                if watch is not None:
                    watch(self)
        finally:
            self.close()
        return self.standing

    def advance(self) -> None:
        """One update, and what is due after it: figures, a test, a checkpoint."""
        self._open()
        with self._random.going_on():
            rate = self._update()
            self._report_if_due(rate)
        plan, step = self.plan, self.standing.step
        if self.done or step % plan.save_every == 0:
            self.standing.check(self._failed)
            self.save()

    def save(self) -> None:
        """Write a checkpoint; it appears whole or not at all."""
        kept = {
            "random": self._random.gathered(self.fabric.world_size),
            "standing": self.standing.to_dict(),
        }
        path, optimizer = self.out / CHECKPOINT, self._optimizer.optimizer
        write_stored(self.fabric, path, self.training, self.task, self.model, optimizer, kept)

    def whole_model(self) -> Model | None:
        """The model in one piece in the first process, None in the others; all must ask."""
        return whole_model(self.model, self.fabric.is_global_zero)

    def close(self) -> None:
        """Finish the metrics and give the folder free; :meth:`run` does it by itself."""
        self._opened = False
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        if self.fabric.world_size > 1:
            settle()

    def _build_task(self) -> Task:
        """The task; the first process of a machine makes what can be kept, such as tokens."""
        with self.fabric.rank_zero_first(local=True):
            return build_task(self.training.task)

    def _fresh_model(self) -> Model:
        """Weights that are a function of the seed, and generators that are those of this process.

        Every process draws the same weights. What it draws later, such as what to drop, is its own.
        """
        with self._random.seeded(self.plan.seed):
            model = build_model(self.training.model, self.fabric)
        if rank := self.fabric.global_rank:
            with self._random.seeded(self.plan.seed, rank):
                pass
        return model

    def _set_up(self) -> None:
        """Bring model and optimizer to where they are trained; the optimizer comes last."""
        self._objective = self.fabric.setup_module(Objective(self.model))
        optimizer = torch.optim.AdamW(
            parameter_groups(self.model, self.plan.weight_decay), betas=self.plan.betas
        )
        self._optimizer = self.fabric.setup_optimizers(optimizer)

    def _open(self) -> None:
        """Take the folder and begin the metrics, once; what is behind the last row is dropped."""
        if not self._opened:
            first_for_all(self.fabric, self._take_folder)
            self._opened = True

    def _take_folder(self) -> None:
        self._lock = FolderLock(self.out)
        remove_parts(self.out)
        board = self.out / BOARD if self._tensorboard else None
        self._metrics = Metrics(self.out / METRICS, self.standing.rows, board)

    def _restore(self) -> None:
        path, optimizer = self.out / CHECKPOINT, self._optimizer.optimizer
        kept = read_stored(path, self.training, self.task, self.model, optimizer)
        self._random.restore(kept["random"], self.fabric.global_rank)
        self.standing = Standing.from_dict(kept["standing"])

    def _update(self) -> float:
        """Take one step; its learning rate."""
        rate = learning_rate(self.standing.step, self.plan)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        batch = self.task.train.take(self._order.at(self.standing.step))
        loss, auxiliary = self._backward(batch)
        norm = self._clip()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.standing.count(loss, auxiliary, norm, batch.inputs.numel())
        return rate

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
            with self._unsynchronized(cut < cuts - 1):
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

    def _unsynchronized(self, unfinished: bool) -> AbstractContextManager[Any]:
        """Processes exchange gradients after the last micro-batch, or after each under FSDP.

        There, gradients that are not exchanged yet would be kept whole in every process.
        """
        if self._sharded:
            return nullcontext()
        context: AbstractContextManager[Any] = self.fabric.no_backward_sync(
            self._objective, enabled=unfinished
        )
        return context

    def _clip(self) -> Tensor:
        """The norm of the whole gradient before it was clipped."""
        limit = math.inf if self.plan.clip is None else self.plan.clip
        norm: Tensor = self.fabric.clip_gradients(
            self._objective, self._optimizer, max_norm=limit, error_if_nonfinite=False
        )
        return in_one_piece(norm).detach()

    def _report_if_due(self, rate: float) -> None:
        plan, step = self.plan, self.standing.step
        tests = step >= plan.steps or step % plan.test_every == 0
        if tests or step % plan.log_every == 0:
            self._log(rate, tests)

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
