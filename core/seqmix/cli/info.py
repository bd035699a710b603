"""``seqmix info``: the card of a model, or of a mixer by name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, JustifyMethod
from rich.table import Table

from seqmix import registry
from seqmix.cli.loading import load_checkpoint
from seqmix.errors import CheckpointError, ConfigError, did_you_mean
from seqmix.reading import UnreadableError, parse_json

if TYPE_CHECKING:
    from seqmix.checkpoint import Checkpoint
    from seqmix.costs import Cost
    from seqmix.mixer import SequenceMixer

__all__ = ["card", "describe", "mixer_card"]

_WIDTH = 768
_SEQ_LEN = 2048
_KINDS = "kinds"
_WIDE = 1000
"""Columns for tables in a file, which take no more of them than they need."""


def describe(
    subject: str,
    rope: str | None = None,
    batch: int = 1,
    seq_len: int | None = None,
    width: int | None = None,
    options: Sequence[str] = (),
    as_json: bool = False,
) -> None:
    """Print the card of a mixer, where ``subject`` is the name of one, else of a model.

    ``seq_len`` defaults to the context of a model, and to 2048 for a mixer. ``width`` and
    ``options`` (``KEY=VALUE``) are a mixer's, ``rope`` is a model's. Raises ConfigError for those
    of the other.
    """
    if subject in registry.names("mixers"):
        if rope is not None:
            raise ConfigError(f"--rope is for models, but '{subject}' is a mixer; leave it out")
        content = mixer_card(subject, _parsed(options), width or _WIDTH, batch, seq_len or _SEQ_LEN)
    else:
        content = card(_checkpoint(subject, rope, width, options), batch, seq_len)
    if as_json:
        print(json.dumps(content, indent=2))
        return
    kinds = content.pop(_KINDS, [])
    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    console.print(_facts(content))
    if kinds:
        console.print(_by_kind(kinds))


def card(checkpoint: Checkpoint, batch: int = 1, seq_len: int | None = None) -> dict[str, Any]:
    """What a reader wants to know of a model, in order; its weights are not read.

    Operations are multiply-adds times two of a forward over ``seq_len`` tokens (by default the
    context), and of one token more after them; ``kinds`` has the same by kind of branch.
    """
    import torch

    from seqmix.costs import model_costs, total_cost
    from seqmix.model import Model

    config = checkpoint.config
    with torch.device("meta"):
        model = Model(config)
    counted = Counter(branch.kind for branch in config.branches())
    length = config.context_length if seq_len is None else seq_len
    costs = model_costs(model, batch, length)
    position = config.position
    return {
        "name": config.name,
        "source": checkpoint.source,
        "layers with a state": len(model.state_specs()),
        "branches": ", ".join(f"{n} {kind}" for kind, n in counted.items()),
        "parameters": model.parameter_count(),
        "width": config.width,
        "vocabulary": config.vocab_size,
        "context": config.context_length,
        "position": "none" if position is None else f"{position.kind} {position.options}",
        "dtype": config.dtype,
        **_costs(total_cost(costs), batch, length),
        _KINDS: [_row(cost, batch) for cost in costs],
    }


def mixer_card(
    name: str, options: dict[str, Any], width: int, batch: int = 1, seq_len: int = _SEQ_LEN
) -> dict[str, Any]:
    """The same of one mixer by itself, in float32; ConfigError for options that do not fit."""
    import torch

    from seqmix.costs import mixer_cost

    mixer = _mixer(name, options, width)
    cost = mixer_cost(name, mixer, batch, seq_len, torch.float32)
    return {
        "mixer": name,
        "options": ", ".join(f"{k}={json.dumps(v)}" for k, v in options.items()) or "defaults",
        "parameters": cost.parameters,
        "width": width,
        "dtype": "f32",
        **_costs(cost, batch, seq_len),
    }


def _mixer(name: str, options: dict[str, Any], width: int) -> SequenceMixer:
    """A mixer without memory."""
    import torch

    from seqmix.config import build_config

    cls = registry.get("mixers", name)
    try:
        checked = build_config(cls.Config, options, f"mixer '{name}'")
    except ConfigError as error:
        raise ConfigError(f"{error}; options are given as --option KEY=VALUE") from error
    try:
        with torch.device("meta"):
            made: SequenceMixer = cls(checked, width)
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        raise ConfigError(
            f"mixer '{name}' cannot be built with these options at width {width}: "
            f"{(str(error).splitlines() or [type(error).__name__])[0]}"
        ) from error
    return made


def _checkpoint(
    subject: str, rope: str | None, width: int | None, options: Sequence[str]
) -> Checkpoint:
    """The model; the error for none names mixers that are near as well."""
    try:
        found = load_checkpoint(subject, rope)
    except CheckpointError as error:
        if near := did_you_mean(subject, registry.names("mixers")):
            raise CheckpointError(f"no mixer '{subject}'{near}; and no model: {error}") from error
        raise
    if width is not None or options:
        raise ConfigError(
            f"--width and --option are for a mixer by name, but '{subject}' is a model, which has "
            "them in its configuration; leave them out"
        )
    return found


def _parsed(options: Sequence[str]) -> dict[str, Any]:
    """``KEY=VALUE`` pairs, ``a.b=VALUE`` for an option within an option.

    A value is JSON where it can be read as that, else a text.
    """
    found: dict[str, Any] = {}
    for option in options:
        key, sign, text = option.partition("=")
        *outer, last = key.split(".")
        if not sign or not all((*outer, last)):
            raise ConfigError(f"option '{option}' should read KEY=VALUE, such as heads=12")
        place = found
        for name in outer:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise ConfigError(f"option '{option}': '{name}' has a value already; give one")
        if last in place:
            raise ConfigError(f"option '{option}': '{last}' has a value already; give one")
        place[last] = _value(text)
    return found


def _value(text: str) -> Any:
    try:
        return parse_json(text)
    except UnreadableError:
        return text


def _costs(cost: Cost, batch: int, seq_len: int) -> dict[str, int]:
    return {"batch": batch, "sequence length": seq_len, **_numbers(cost, batch)}


def _row(cost: Cost, batch: int) -> dict[str, Any]:
    return {
        "kind": cost.kind,
        "branches": cost.count,
        "parameters": cost.parameters,
        **_numbers(cost, batch),
    }


def _numbers(cost: Cost, batch: int) -> dict[str, int]:
    return {
        "flops of a forward": cost.flops,
        "flops per token at decode": cost.step_flops // batch,
        "state bytes at the start": cost.start_bytes,
        "state bytes per token": cost.token_bytes,
        "state bytes at the end": cost.bytes,
    }


def _facts(content: dict[str, Any]) -> Table:
    table = Table(show_header=False)
    for key, value in content.items():
        table.add_row(key, _shown(value))
    return table


def _by_kind(rows: list[dict[str, Any]]) -> Table:
    table = Table()
    for column in rows[0]:
        # A number that does not fit is broken, never cut: its last digits count too.
        justify: JustifyMethod = "left" if column == "kind" else "right"
        table.add_column(column, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*map(_shown, row.values()))
    return table


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
