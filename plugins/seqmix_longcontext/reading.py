"""What a model makes of a text: the loss of every token, read in pieces of bounded memory.

N tokens of the text, S tokens of a piece, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from seqmix.config import ModelConfig
from seqmix.errors import ConfigError
from seqmix.model import Model, initial_states, unflatten_states
from seqmix_longcontext.partial import Partial
from seqmix_longcontext.subject import Runner

__all__ = ["Losses", "Watch", "splits", "token_losses"]

Losses = NDArray[np.float64]
Watch = Callable[[int], None]

LOGITS = 1 << 24
"""Logits that are normalized at once: 64 MiB in float32."""


def splits(config: ModelConfig) -> bool:
    """Whether reading in pieces is the same as at once, so that a loss depends on what came before.

    Not where one scale of the position encoding holds for a whole call: there every length is read
    anew, at once.
    """
    if config.position is None:
        return True
    with torch.device("meta"):
        position = Model(config).position
    return position is None or position.splits


@torch.inference_mode()
def token_losses(
    runner: Runner,
    ids: Sequence[int],
    *,
    chunk: int = 512,
    skip: int = 0,
    pieces: bool | None = None,
    watch: Watch | None = None,
    partial: Partial | None = None,
) -> Losses:
    """Minus the log-probability of tokens ``skip + 1 .. N - 1`` given all before, in nats.

    float64 ``[N - 1 - skip]``: token 0 has nothing to be told by. At most ``chunk`` tokens are read
    at once, so memory is that of the state and of so many logits, whatever N is. ``pieces`` says
    whether to read so, or all tokens in one call, whose logits alone are made in pieces; None does
    what :func:`splits` says. ``watch`` is told the number of tokens as they are read. ``partial``
    keeps what was read on disk, to go on from there; it is for the caller to remove.
    """
    if chunk < 1 or not 0 <= skip < len(ids) - 1:
        raise ConfigError(
            f"{len(ids)} tokens in chunks of {chunk}, of which {skip} are skipped, leave nothing "
            "to measure; give at least two tokens, and a chunk of at least 1"
        )
    row = torch.tensor([list(ids)], device=_device(runner))
    if splits(runner.config) if pieces is None else pieces:
        return _piecewise(runner, row, chunk, skip, watch or _unheard, partial)
    if not isinstance(runner, Model):
        raise ConfigError(
            f"model '{runner.config.name}': its encoding has one scale for a whole call, which a "
            "compiled model would need all logits at once for; use the backend torch, or the "
            "option mode=per_query"
        )
    found = _at_once(runner, row, chunk, skip)
    if watch is not None:
        watch(len(ids))
    return found


def _piecewise(
    runner: Runner, row: Tensor, chunk: int, skip: int, watch: Watch, partial: Partial | None
) -> Losses:
    begun = None if partial is None else partial.load(runner)
    first, found, states = begun or (0, [np.empty(0)], _fresh(runner))
    watch(first)
    for start in range(first, row.shape[1], chunk):
        stop = min(start + chunk, row.shape[1])
        positions = torch.arange(start, stop, device=row.device).unsqueeze(0)
        # Where nothing is wanted one token's logits are still made: 0 would ask for all of them.
        wanted = max(stop - max(start, skip), 0)
        logits, states = _advance(runner, row[:, start:stop], positions, states, max(wanted, 1))
        targets = row[0, stop - wanted + 1 : stop + 1]
        found.append(_losses(logits[len(logits) - wanted :][: len(targets)], targets))
        if partial is not None:
            partial.save(runner, stop, found, states)
        watch(stop - start)
    return np.concatenate(found)


def _unheard(count: int) -> None:
    """Nobody watches."""


def _advance(
    runner: Runner, ids: Tensor, positions: Tensor, states: Any, wanted: int
) -> tuple[Tensor, Any]:
    """The last logits, so many, ``[wanted, V]``, and the states after."""
    if isinstance(runner, Model):
        logits, after = runner(ids, positions, states, wanted)
        return logits[0], after
    logits, flat = runner(ids, positions, cast("Mapping[str, Tensor]", states))
    return logits[0, -wanted:], flat


def _at_once(model: Model, row: Tensor, chunk: int, skip: int) -> Losses:
    """One call over all tokens; only its logits are made in pieces."""
    positions = torch.arange(row.shape[1], device=row.device).unsqueeze(0)
    states = _fresh(model)
    x, ctx = model.embedded(row, positions)
    for step in cast("Iterable[Any]", model.steps):
        total = x
        for branch in step.branches:
            state = {} if branch.layer is None else states[branch.layer]
            total = total + branch(x, state, ctx)[0]
        x = total
    pieces = zip(
        torch.split(x[:, skip:-1], chunk, 1), torch.split(row[0, skip + 1 :], chunk), strict=True
    )
    return np.concatenate([_losses(model.logits(part)[0], targets) for part, targets in pieces])


def _losses(logits: Tensor, targets: Tensor) -> Losses:
    """Cross-entropies ``[S]`` of ``logits [S, V]``, in float32 at least."""
    if not len(targets):
        return np.empty(0)
    rows = max(1, LOGITS // logits.shape[1])
    wide = torch.promote_types(logits.dtype, torch.float32)
    pieces = zip(torch.split(logits, rows), torch.split(targets, rows), strict=True)
    found = [F.cross_entropy(part.to(wide), t, reduction="none") for part, t in pieces]
    return torch.cat(found).double().cpu().numpy()


def _fresh(runner: Runner) -> Any:
    if isinstance(runner, Model):
        return unflatten_states(runner, initial_states(runner, 1))
    return runner.initial_state(1)


def _device(runner: Runner) -> torch.device:
    return runner.embed.weight.device if isinstance(runner, Model) else torch.device("cpu")
