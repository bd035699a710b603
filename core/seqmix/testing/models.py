"""check_model: compiled models against torch or the float64 judge, at lengths not traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from seqmix.backend import Executable
from seqmix.model import Model, flatten_states, initial_states, unflatten_states
from seqmix.prompts import learned_positions
from seqmix.testing.inputs import distance
from seqmix.testing.report import CheckReport, Row
from seqmix.testing.tolerances import MODEL_TOLERANCES

__all__ = ["check_model"]


def check_model(
    model: Model,
    executables: Mapping[str, Executable],
    lengths: Sequence[int] = (1, 7, 65),
    past: int = 33,
    *,
    batch: int = 2,
    ids: Tensor | None = None,
    judge: Executable | None = None,
    tolerances: Mapping[str, float] | None = None,
) -> CheckReport:
    """Compare logits and states of compiled models with torch, or with ``judge`` when given.

    Each length is a prefill, and a prefill after ``past`` tokens; a length of 1 is a step. ``ids``
    (int64 ``[B, at least past + max(lengths)]``) is what is read, by default random tokens. A model
    with learned positions is compared within them. ``tolerances`` says for some executables what
    error is allowed, instead of that of the model's dtype.
    """
    report = CheckReport(f"model '{model.config.name}'")
    if (known := learned_positions(model.config)) is not None:
        past = min(past, known // 2)
        lengths = sorted({min(length, known - past) for length in lengths})
    if ids is None:
        size = (batch, past + max(lengths))
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, model.config.vocab_size, size, generator=generator)
    runners: dict[str, Model | Executable] = dict(executables)
    reference: Model | Executable = model
    if judge is not None:
        runners, reference = {"torch": model, **runners}, judge
    tolerance = MODEL_TOLERANCES[model.config.dtype]
    for before in (0, past):
        states = _after(model, ids[:, :before])
        for length in lengths:
            tokens = ids[:, before : before + length]
            expected = _run(reference, tokens, before, states)
            entry = "step" if length == 1 else "prefill with state" if before else "prefill"
            for name, runner in runners.items():
                found = _run(runner, tokens, before, states)
                error = max(distance(found[key], value) for key, value in expected.items())
                detail = f"B={tokens.shape[0]} S={length} P={before}"
                where = f"{name} {model.config.dtype}"
                allowed = (tolerances or {}).get(name, tolerance)
                report.rows.append(Row(entry, where, error, allowed, detail))
    return report


def _after(model: Model, ids: Tensor) -> dict[str, Tensor]:
    """The states after some tokens, by the torch model."""
    states = initial_states(model, ids.shape[0])
    if ids.shape[1] == 0:
        return states
    out = _run(model, ids, 0, states)
    return {name: tensor for name, tensor in out.items() if name != "logits"}


def _run(
    runner: Model | Executable, ids: Tensor, start: int, states: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Logits and flat states of consecutive tokens."""
    positions = torch.arange(start, start + ids.shape[1]).expand(ids.shape[0], -1).contiguous()
    if isinstance(runner, Executable):
        logits, after = runner(ids, positions, states)
        return {"logits": logits, **after}
    with torch.inference_mode():
        logits, new = runner(ids, positions, unflatten_states(runner, states))
    return {"logits": logits, **flatten_states(runner, new)}
