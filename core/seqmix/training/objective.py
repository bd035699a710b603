"""What training makes small: the loss of a batch, and what mixers want added to it.

Sizes: B rows, S tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seqmix.model import Model
from seqmix.ops import cross_entropy
from seqmix.training.rows import IGNORED, Batch, Rows

__all__ = ["Objective", "measure", "parameter_groups"]


class Objective(nn.Module):
    """A model with its loss as one module, so that whoever wraps it sees losses and no states."""

    def __init__(self, model: Model) -> None:
        """Take over the model as it is."""
        super().__init__()
        self.model = model

    def forward(
        self, inputs: Tensor, targets: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Cross-entropies summed over what is asked in nats, right answers, auxiliary losses.

        All are float32 scalars; what is int64 ``[B, S]`` is as in
        :class:`~seqmix.training.rows.Batch`.
        """
        extra: list[Tensor] = []
        logits, _ = self.model(inputs, positions, aux_losses=extra)
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten()).sum()
        with torch.no_grad():
            right = (logits.argmax(-1) == targets).sum().to(loss.dtype)
        auxiliary = sum((term.to(loss.dtype) for term in extra), loss.new_zeros(()))
        return loss, right, auxiliary


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; biases, norms, embeddings and whatever has fewer than two axes do not."""
    decaying: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    embeddings = {id(parameter) for table in tables for parameter in table.parameters()}
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim > 1 and "bias" not in name and id(parameter) not in embeddings
        (decaying if is_matrix else others).append(parameter)
    groups = [(decaying, weight_decay), (others, 0.0)]
    return [{"params": some, "weight_decay": decay} for some, decay in groups if some]


@torch.no_grad()
def measure(
    objective: nn.Module, rows: Rows, size: int, rank: int = 0, world: int = 1
) -> tuple[float, float, int]:
    """Loss and right answers, summed, and how many were asked, over every ``world``-th batch.

    All processes call the model equally often: where weights are shared out, each needs the others.
    """
    was_training = objective.training
    objective.eval()
    loss = right = 0.0
    asked = 0
    device = next(objective.parameters()).device
    for batch in _batches(rows, size, rank, world):
        here = batch.to(device)
        summed, hits, _ = objective(here.inputs, here.targets, here.positions)
        loss, right, asked = loss + summed.item(), right + hits.item(), asked + batch.asked()
    objective.train(was_training)
    return loss, right, asked


def _batches(rows: Rows, size: int, rank: int, world: int) -> Iterator[Batch]:
    """Batches of a process; where it has one less than others, a last one that asks nothing."""
    for start in range(0, len(rows), world * size):
        first = start + rank * size
        if first < len(rows):
            yield rows.take(np.arange(first, min(first + size, len(rows))))
        else:
            batch = rows.take(np.arange(1))
            yield replace(batch, targets=torch.full_like(batch.targets, IGNORED))
