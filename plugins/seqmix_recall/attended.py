"""How many positions a hybrid with selective attention attends from, counted and not assumed.

Sizes: B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from seqmix.training.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor

    from seqmix.model import Model

__all__ = ["attended_share"]

ROWS_AT_ONCE = 128
SELECTED = "selected"
"""Where the state of a selective mixer counts the positions that were selected so far, ``[B]``."""


@torch.no_grad()
def attended_share(
    model: Model, rows: Rows, rows_at_once: int = ROWS_AT_ONCE
) -> dict[str, float | int]:
    """``attended_share`` and ``attended_most`` of all tokens of ``rows``; empty if none selects.

    The first is a mean over rows and selecting layers, the second the most positions that any layer
    has selected in any row. Both come from the states that the model returns in evaluation.
    """
    was_training = model.training
    model.eval()
    selected = tokens = most = 0
    device = next(model.parameters()).device
    for start in range(0, len(rows), rows_at_once):
        index = np.arange(start, min(start + rows_at_once, len(rows)))
        batch = rows.take(index).to(device)
        _, states = model(batch.inputs, batch.positions)
        if not (counts := _counts(states)):
            break
        selected += sum(int(count.sum()) for count in counts)
        most = max([most, *(int(count.max()) for count in counts)])
        tokens += len(counts) * int((batch.positions >= 0).sum())
    model.train(was_training)
    return {"attended_share": selected / tokens, "attended_most": most} if tokens else {}


def _counts(states: list[Mapping[str, Tensor]]) -> list[Tensor]:
    return [state[SELECTED] for state in states if SELECTED in state]
