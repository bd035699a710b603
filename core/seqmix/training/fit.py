"""Whether a model, a task, a plan and a number of processes fit together."""

from __future__ import annotations

from seqmix.errors import ConfigError
from seqmix.training.plan import Training
from seqmix.training.task import Task

__all__ = ["check_fit"]


def check_fit(training: Training, task: Task, world: int) -> None:
    """ConfigError unless model, task and plan fit, for ``world`` processes."""
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
