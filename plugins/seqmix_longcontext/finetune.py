"""Fine-tuning a model for a longer context, as in YaRN, section 4.1."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from seqmix.blocks import Kind
from seqmix.errors import CheckpointError, ConfigError
from seqmix.model import Model
from seqmix.reading import UnreadableError, read_json
from seqmix.training.plan import Plan, Training
from seqmix.training.trainer import Trainer
from seqmix.weights import Weights
from seqmix.whole_file import write_whole

__all__ = ["extension_plan", "fine_tune", "packed_text"]

START = "start.json"
WARM_UP = 20


def extension_plan(steps: int, batch: int, rate: float = 2e-5, **changes: Any) -> Plan:
    """The paper's plan: AdamW with betas 0.9 and 0.95, no weight decay, 20 steps of warm-up.

    The rate is constant afterwards. The paper's models took 400 steps with a batch of 64; ``rate``
    is right for models of some billion parameters, small ones want a higher one. ``changes`` are
    fields of :class:`~seqmix.training.plan.Plan`.
    """
    fields: dict[str, Any] = {
        "steps": steps,
        "batch": batch,
        "rate": rate,
        "warm_up": min(WARM_UP, steps),
        "lowest": 1.0,
        "weight_decay": 0.0,
        "betas": (0.9, 0.95),
    }
    return Plan.model_validate({**fields, **changes})


def packed_text(
    files: Sequence[Path], length: int, tokenizer: str = "bytes", **options: Any
) -> Kind:
    """The task of texts whose documents are packed to rows of ``length`` tokens.

    ``tokenizer`` is a checkpoint, whose end-of-text token stands between documents; ``options`` are
    those of the task ``text``.
    """
    names = [str(file) for file in files]
    return Kind(kind="text", files=names, length=length, tokenizer=tokenizer, **options)


def fine_tune(
    model: Model,
    task: Kind,
    plan: Plan,
    out: Path,
    *,
    watch: Callable[[Trainer], None] | None = None,
    resume: bool = True,
) -> Trainer:
    """Train an extended model further, in the folder ``out``; ``trainer.model`` is the result.

    ``model`` stays as it is. The same call goes on where it was stopped. Raises ConfigError for
    rows longer than the model's context, CheckpointError when the folder has a training that began
    with other weights.
    """
    _check_rows(model, task)
    training = Training(model=model.config, task=task, training=plan)
    trainer = Trainer(training, out, resume=resume)
    started = {"weights": Weights.of(model).digest()}
    if trainer.standing.step == 0:
        trainer.model.load_state_dict(model.state_dict())
        text = json.dumps(started) + "\n"
        write_whole(out / START, text)
    else:
        _check_start(out / START, started)
    trainer.run(watch)
    return trainer


def _check_rows(model: Model, task: Kind) -> None:
    length, context = task.options.get("length"), model.config.context_length
    if isinstance(length, int) and length > context:
        raise ConfigError(
            f"rows of {length} tokens are longer than the context of model '{model.config.name}', "
            f"{context}; extend it first, such as by seqmix.extend(model, 'yarn:2')"
        )


def _check_start(path: Path, started: dict[str, str]) -> None:
    """A checkpoint holds the weights as they are by now: what they began as is kept beside it."""
    try:
        found = read_json(path)
    except UnreadableError:
        found = None
    if found != started:
        raise CheckpointError(
            f"{path.parent}: has a fine-tuning that began with other weights; choose another "
            "folder, or start anew with resume=False"
        )
