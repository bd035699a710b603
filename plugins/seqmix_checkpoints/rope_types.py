"""The rope types of transformers, and what their settings are called here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from seqmix.config import Kind

__all__ = ["KEYS", "ORIGINAL", "TYPES", "RopeType", "gguf_rope", "rope_settings"]

ORIGINAL = "original_max_position_embeddings"
_ALWAYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", ORIGINAL)


@dataclass(frozen=True)
class RopeType:
    """A type: the encoding it is here, what it needs, and its options by their names there."""

    kind: str
    options: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    lengths: bool = False
    """Whether it reads the original length."""
    ratio: bool = False
    """Whether a missing factor is the ratio of the lengths."""
    zero_is_none: tuple[str, ...] = ()
    """Options for which transformers takes a 0 as not given."""

    @property
    def keys(self) -> frozenset[str]:
        """Every key that it reads."""
        return frozenset((*_ALWAYS, *self.options, *(("factor",) if self.ratio else ())))


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_BETAS = ("beta_fast", "beta_slow")
_SCALES = ("attention_factor", "attn_factor", "mscale", "mscale_all_dim")
_LISTS = ("short_factor", "long_factor")
_TURNS = ("low_freq_factor", "high_freq_factor")
_LONG = RopeType("longrope", _same(*_LISTS, "attention_factor"), _LISTS, lengths=True, ratio=True)

TYPES: Mapping[str, RopeType] = {
    "default": RopeType("rope"),
    # Several coordinates per token, which are one and the same for text.
    "mrope": RopeType("rope"),
    "linear": RopeType("linear", _same("factor"), ("factor",)),
    "dynamic": RopeType("dynamic-ntk", {"factor": "rate"}, ("factor",), lengths=True),
    "yarn": RopeType(
        "yarn",
        _same(*_BETAS, "truncate", *_SCALES),
        lengths=True,
        ratio=True,
        zero_is_none=_BETAS,
    ),
    "llama3": RopeType("llama3", _same("factor", *_TURNS), ("factor", *_TURNS), lengths=True),
    "longrope": _LONG,
    "su": _LONG,
    "proportional": RopeType("proportional", {"factor": "factor", "partial_rotary_factor": "part"}),
}
"""By their names in transformers; ``su`` is an old name of longrope."""

KEYS = tuple(dict.fromkeys(key for type in TYPES.values() for key in sorted(type.keys)))
"""Every key that some type reads."""


def rope_settings(position: Kind) -> dict[str, Any] | None:
    """``rope_parameters`` of an encoding, but for its layout and partial rotation; None if none.

    Options that transformers has no word for are left out when they say what it does anyway, and
    else there are no such settings. A scale that follows the length is one per call there, and does
    not turn the keys of earlier calls anew.
    """
    name = next((n for n, type in TYPES.items() if type.kind == position.kind), None)
    if name is None:
        return None
    given = {key: value for key, value in position.options.items() if value is not None}
    settings: dict[str, Any] = {"rope_type": name, "rope_theta": given.pop("theta", 10000.0)}
    type = TYPES[name]
    names = {ours: theirs for theirs, ours in type.options.items()}
    names |= {"factor": "factor"} if type.ratio else {}
    names |= {"original_context_length": ORIGINAL} if type.lengths else {}
    for key, value in given.items():
        if key in names:
            settings[names[key]] = value
        elif key not in ("layout", "rotary_dim", "mode") and value != _THEIRS.get(key):
            return None
    return settings


def gguf_rope(position: Kind) -> dict[str, Any] | None:
    """The ``rope.*`` metadata of an encoding, without the architecture in front; None if none.

    Types whose frequencies GGUF keeps as tensors (llama3, longrope) are not among them.
    """
    options = {key: value for key, value in position.options.items() if value is not None}
    keys: dict[str, Any] = {"rope.freq_base": options.pop("theta", 10000.0)}
    if position.kind not in ("rope", "linear", "yarn"):
        return None
    keys["rope.scaling.type"] = {"rope": "none"}.get(position.kind, position.kind)
    names = {"factor": "rope.scaling.factor", "attn_factor": "rope.scaling.attn_factor"}
    names |= {"original_context_length": "rope.scaling.original_context_length"}
    names |= {beta: f"rope.scaling.yarn_{beta}" for beta in _BETAS}
    for key, value in options.items():
        if key in names:
            keys[names[key]] = value
        elif key not in ("layout", "rotary_dim") and value != _GGUF.get(key):
            return None
    return keys


_THEIRS = {"granularity": 1, "ramp": "pairs", "scale_softmax": False}
_GGUF = {"ramp": "pairs", "scale_softmax": False, "truncate": True}
