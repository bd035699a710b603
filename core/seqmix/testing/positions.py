"""check_position: the laws and every backend for attention with a position encoding.

B batch, S sequence, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from seqmix import registry
from seqmix.config import build_config
from seqmix.context import Context
from seqmix.mixer import SequenceMixer
from seqmix.position import PositionEncoding
from seqmix.state import State, StateSpec
from seqmix.testing.mixers import check_mixer
from seqmix.testing.report import CheckReport

__all__ = ["check_position"]

_WIDTH = 24
_HEAD_DIM = 6
_MIXERS: tuple[dict[str, Any], ...] = (
    {"heads": 3, "kv_heads": 1, "head_dim": _HEAD_DIM},
    {"heads": 2, "head_dim": _HEAD_DIM, "window": 4, "scale": 0.7},
)


def check_position(
    position: str | type[PositionEncoding],
    options: Mapping[str, Any] | None = None,
    *,
    mixer: str = "attention",
    profile: str = "quick",
    backends: Sequence[str] | None = None,
) -> CheckReport:
    """Check a position encoding in the ``mixer`` it is for, with all keys and with a window.

    Without ``options`` every one of the encoding's ``examples()`` is checked. What is checked is
    what :func:`check_mixer` checks, but for the splitting law where the encoding says that it does
    not ``split``. ConfigError for what does not fit.
    """
    name = position if isinstance(position, str) else position.__name__
    found = registry.get("positions", position) if isinstance(position, str) else position
    cls = cast(type[PositionEncoding], found)
    report = CheckReport(f"position '{name}'")
    for example in cls.examples() if options is None else [dict(options)]:
        for subject, label in _subjects(cls, name, example, mixer):
            part = check_mixer(subject, width=_WIDTH, profile=profile, backends=backends)
            kept = (row for row in part.rows if subject.encoding.splits or not _is_split(row.check))
            report.rows += [replace(row, where=f"{label} {row.where}") for row in kept]
            report.notes += part.notes
    report.notes = list(dict.fromkeys(report.notes))
    return report


def _is_split(check: str) -> bool:
    return check.startswith("splitting")


def _subjects(
    cls: type[PositionEncoding], name: str, options: dict[str, Any], mixer: str
) -> Iterator[tuple[_Encoded, str]]:
    shown = ",".join(f"{key}={value}" for key, value in options.items())
    checked = build_config(cls.Config, options, f"position encoding '{name}'")
    kind = cast(type[SequenceMixer], registry.get("mixers", mixer))
    size = {"width": _WIDTH} if cls.built_for == "width" else {"head_dim": _HEAD_DIM}
    # An encoding for so many heads is tried in mixers of as many.
    heads = {key: options[key] for key in ("heads",) if key in options}
    for fields in ({**mixer_fields, **heads} for mixer_fields in _MIXERS):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            inner = kind(build_config(kind.Config, fields, f"mixer '{mixer}'"), _WIDTH)
            for parameter in inner.parameters():
                torch.nn.init.normal_(parameter, std=0.3)
            subject = _Encoded(inner, cls(checked, **size))
        yield subject, f"{shown} window={fields.get('window', 0)}"


class _Encoded(SequenceMixer):
    """A mixer whose context has a position encoding."""

    def __init__(self, mixer: SequenceMixer, encoding: PositionEncoding) -> None:
        super().__init__()
        self.mixer = mixer
        self.encoding = encoding
        self.head_dim = _HEAD_DIM

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """As the model does it: what is embedded is added before."""
        inner = Context(ctx.positions, input_ids=ctx.input_ids, encoding=self.encoding)
        added = self.encoding.embed(ctx.positions)
        return self.mixer(x if added is None else x + added.to(x.dtype), state, inner)  # type: ignore[no-any-return]

    def state_spec(self) -> dict[str, StateSpec]:
        """That of the mixer."""
        return self.mixer.state_spec()

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Those of the mixer."""
        return self.mixer.flops(batch_size, seq_len)
