"""Where a training stands: the step, the figures so far, and whether it has seen enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from seqmix.training.metrics import Row
from seqmix.training.plan import Plan

__all__ = ["Standing"]


@dataclass
class Standing:
    """All numbers that the next step, test or row depends on; part of a checkpoint."""

    step: int = 0
    tokens: int = 0
    rows: list[dict[str, float | int | None]] = field(default_factory=list)
    best: float | None = None
    """The best held-out figure that the plan may stop for."""
    worse: int = 0
    """Tests since then."""
    stopped: bool = False
    loss_sum: Any = 0.0
    auxiliary_sum: Any = 0.0
    summed: int = 0
    """Steps in the two sums: those since the last row."""
    norm: Any = 0.0

    def count(self, loss: Tensor, auxiliary: Tensor, norm: Tensor, tokens: int) -> None:
        """Take in a step. Nothing waits for the device: the tensors are read with the next row."""
        self.step += 1
        self.tokens += tokens
        self.loss_sum = self.loss_sum + loss
        self.auxiliary_sum = self.auxiliary_sum + auxiliary
        self.summed += 1
        self.norm = norm

    def check(self, failure: Callable[[], Exception]) -> None:
        """Raise what ``failure`` makes if a sum or the norm is not finite."""
        figures = (self.loss_sum, self.auxiliary_sum, self.norm)
        if not all(torch.isfinite(torch.as_tensor(figure)).item() for figure in figures):
            raise failure()

    def row(self, rate: float, held_out: float | None, accuracy: float | None) -> Row:
        """The figures since the last row, which are then forgotten; means over steps."""
        row: dict[str, float | int | None] = {
            "step": self.step,
            "tokens": self.tokens,
            "learning_rate": rate,
            "loss": float(self.loss_sum) / self.summed,
            "auxiliary_loss": float(self.auxiliary_sum) / self.summed,
            "gradient_norm": float(self.norm),
            "held_out_loss": held_out,
            "held_out_accuracy": accuracy,
        }
        self.rows.append(row)
        self.loss_sum = self.auxiliary_sum = 0.0
        self.summed = 0
        return row

    def judge(self, plan: Plan, loss: float | None, accuracy: float | None) -> None:
        """Decide after a test whether to stop early."""
        if plan.stop is None or loss is None or accuracy is None:
            return
        # Both are made such that more is better.
        sign = 1.0 if plan.stop == "accuracy" else -1.0
        figure = sign * (accuracy if plan.stop == "accuracy" else loss)
        improved = self.best is None or figure > sign * self.best
        if improved:
            self.best, self.worse = sign * figure, 0
        else:
            self.worse += 1
        enough = plan.stop_at is not None and figure >= sign * plan.stop_at
        self.stopped = enough or (plan.patience is not None and self.worse >= plan.patience)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers; sums keep their float64."""
        content = asdict(self)
        for name in ("loss_sum", "auxiliary_sum", "norm"):
            content[name] = float(content[name])
        return content

    @staticmethod
    def from_dict(content: dict[str, Any]) -> Standing:
        """The inverse of :meth:`to_dict`."""
        return Standing(**content)
