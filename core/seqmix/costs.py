"""What a model costs: parameters, operations and bytes of state, for each kind of branch.

Nothing is measured: operations are ``SequenceMixer.flops`` and ``step_flops``, bytes follow from
``state_spec``. Models and mixers on the meta device do, so no memory is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch

from seqmix.mixer import SequenceMixer
from seqmix.model import Model
from seqmix.state import state_bytes

__all__ = ["Cost", "mixer_cost", "model_costs", "total_cost"]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of ``count`` branches of one kind, or of everything together.

    Attributes:
        kind: the name of the mixer.
        count: how many there are.
        parameters: the weights, those of the norm in front included.
        flops: multiply-adds times two of a forward over the whole sequence.
        step_flops: the same of one token more, as decoding does it.
        start_bytes: the state before the first token.
        token_bytes: what each token adds to it.
        bytes: the state after the whole sequence.

    """

    kind: str
    count: int
    parameters: int
    flops: int
    step_flops: int
    start_bytes: int
    token_bytes: int
    bytes: int


def mixer_cost(
    kind: str, mixer: SequenceMixer, batch: int, seq_len: int, dtype: torch.dtype
) -> Cost:
    """The cost of one mixer by itself, in a model of a dtype."""
    specs = mixer.state_spec()
    start, one, whole = (state_bytes(specs, batch, past, dtype=dtype) for past in (0, 1, seq_len))
    return Cost(
        kind=kind,
        count=1,
        parameters=sum(p.numel() for p in mixer.parameters()),
        flops=mixer.flops(batch, seq_len),
        step_flops=mixer.step_flops(batch, seq_len),
        start_bytes=start,
        token_bytes=one - start,
        bytes=whole,
    )


def model_costs(model: Model, batch: int, seq_len: int) -> list[Cost]:
    """One cost per kind of branch, in the order of their first branches, then everything else.

    Everything else is embeddings, final norm and head; norms and the embedding cost no operations.
    """
    found: dict[str, Cost] = {}
    for branch, config in zip(model.branches(), model.config.branches(), strict=True):
        cost = mixer_cost(config.kind, branch.mixer, batch, seq_len, model.dtype)
        norm = sum(p.numel() for p in branch.norm.parameters())
        cost = _sum(config.kind, [cost, Cost(config.kind, 0, norm, 0, 0, 0, 0, 0)])
        found[config.kind] = _sum(config.kind, [c for c in (found.get(config.kind), cost) if c])
    costs = list(found.values())
    branches = total_cost(costs)
    rest = Cost(
        kind="embedding and head",
        count=1,
        parameters=model.parameter_count() - branches.parameters,
        flops=model.flops(batch, seq_len) - branches.flops,
        step_flops=model.step_flops(batch, seq_len) - branches.step_flops,
        start_bytes=0,
        token_bytes=0,
        bytes=0,
    )
    return [*costs, rest]


def total_cost(costs: Iterable[Cost]) -> Cost:
    """All costs together."""
    return _sum("total", costs)


def _sum(kind: str, costs: Iterable[Cost]) -> Cost:
    rows = list(costs)
    numbers = [f.name for f in fields(Cost) if f.name != "kind"]
    return Cost(kind, *(sum(getattr(row, name) for row in rows) for name in numbers))
