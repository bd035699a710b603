"""How well a model recalls, place by place.

Sizes: N rows, S tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from seqmix.training.rows import IGNORED, Rows
from seqmix_recall.attended import attended_share

if TYPE_CHECKING:
    from seqmix.model import Model

__all__ = ["accuracy_by_position", "mixture_report", "recall_report"]

ROWS_AT_ONCE = 128


@torch.no_grad()
def accuracy_by_position(
    model: Model, rows: Rows, rows_at_once: int = ROWS_AT_ONCE
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Right answers and questions at every place of a row, ``[S]`` each; exact match of the token.

    The model is left in the mode it was in.
    """
    was_training = model.training
    model.eval()
    right = asked = np.zeros(0, np.int64)
    device = next(model.parameters()).device
    for start in range(0, len(rows), rows_at_once):
        index = np.arange(start, min(start + rows_at_once, len(rows)))
        batch = rows.take(index).to(device)
        logits, _ = model(batch.inputs, batch.positions)
        hits = (logits.argmax(-1) == batch.targets).sum(0).cpu().numpy()
        questions = (batch.targets != IGNORED).sum(0).cpu().numpy()
        right, asked = (right + hits, asked + questions) if start else (hits, questions)
    model.train(was_training)
    return right, asked


def recall_report(model: Model, rows: Rows) -> dict[str, Any]:
    """Accuracy over all questions, and at every place where something is asked.

    A model that selects where it attends has the share of such positions too.
    """
    right, asked = accuracy_by_position(model, rows)
    places = np.flatnonzero(asked)
    return {
        "accuracy": float(right.sum() / max(1, asked.sum())),
        "questions": int(asked.sum()),
        **attended_share(model, rows),
        "by_position": [
            {"position": int(p), "questions": int(asked[p]), "accuracy": float(right[p] / asked[p])}
            for p in places
        ],
    }


def mixture_report(model: Model, portions: Mapping[str, Rows]) -> dict[str, Any]:
    """Accuracy over all questions, and by name that of every portion that has rows."""
    reports = {name: recall_report(model, rows) for name, rows in portions.items() if len(rows)}
    questions = sum(report["questions"] for report in reports.values())
    right = sum(report["accuracy"] * report["questions"] for report in reports.values())
    return {
        "accuracy": right / max(1, questions),
        "questions": questions,
        **{name: report["accuracy"] for name, report in reports.items()},
        "portions": reports,
    }
