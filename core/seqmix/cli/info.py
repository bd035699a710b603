"""``seqmix info``: the model card."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from seqmix.cli.loading import load_checkpoint

if TYPE_CHECKING:
    from seqmix.checkpoint import Checkpoint

__all__ = ["card", "describe"]


def describe(source: str, rope: str | None, as_json: bool) -> None:
    """Print the card of a model."""
    content = card(load_checkpoint(source, rope))
    if as_json:
        print(json.dumps(content, indent=2))
        return
    table = Table(show_header=False)
    for key, value in content.items():
        table.add_row(key, f"{value:,}" if isinstance(value, int) else str(value))
    Console().print(table)


def card(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a reader wants to know of a model, in order; its weights are not read."""
    import torch

    from seqmix.model import Model
    from seqmix.state import state_bytes

    config = checkpoint.config
    with torch.device("meta"):
        model = Model(config)
    kinds = Counter(branch.kind for branch in config.branches())
    specs = model.state_specs()
    per_token = sum(
        state_bytes(s, 1, 1, dtype=model.dtype) - state_bytes(s, 1, 0, dtype=model.dtype)
        for s in specs
    )
    position = config.position
    return {
        "name": config.name,
        "source": checkpoint.source,
        "layers with a state": len(specs),
        "branches": ", ".join(f"{n} {kind}" for kind, n in kinds.items()),
        "parameters": model.parameter_count(),
        "width": config.width,
        "vocabulary": config.vocab_size,
        "context": config.context_length,
        "position": "none" if position is None else f"{position.kind} {position.options}",
        "dtype": config.dtype,
        "state bytes at the start": sum(state_bytes(s, 1, 0, dtype=model.dtype) for s in specs),
        "state bytes per token": per_token,
    }
