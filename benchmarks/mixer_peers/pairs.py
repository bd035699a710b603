"""Who meets whom: the options of seqmix's mixers, and of the others that compute the same."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["LENGTH", "OURS", "SLOW", "THEIRS", "WIDTH", "Peer"]

WIDTH, LENGTH = 256, 2048


class Peer(NamedTuple):
    """A class of zoology (in ``place``, a module), of transformers, or a plain one."""

    source: str
    name: str
    place: str = ""
    options: dict[str, Any] = {}  # noqa: RUF012
    note: str = ""

    @property
    def label(self) -> str:
        """What its rows are called."""
        return " ".join(filter(None, (self.source, self.name, self.note)))


FILTER = {"reference_length": LENGTH}
HEADS = {"heads": 4, "head_dim": 64, "bias": True, "output_bias": True}
OURS: dict[str, dict[str, Any]] = {
    "base_conv, 3 taps": {"kind": "base_conv", "taps": 3},
    "base_conv, explicit": {
        "kind": "base_conv",
        "filter": "explicit",
        "taps": LENGTH,
        "form": "skip",
    },
    "base_conv, implicit": {
        "kind": "base_conv",
        "filter": "implicit",
        "implicit": FILTER,
        "form": "skip",
    },
    "long_convolution": {"kind": "long_convolution", "taps": LENGTH},
    "long_convolution, safari": {
        "kind": "long_convolution",
        "taps": LENGTH,
        "form": "safari",
        "filters": 2,
    },
    "hyena": {"kind": "hyena", "filter": FILTER, "gates": "zoology"},
    "hyena, order 3": {"kind": "hyena", "filter": FILTER, "order": 3},
    "h3": {"kind": "h3", "state_size": 64},
    "h3, head_dim 2": {"kind": "h3", "state_size": 64, "head_dim": 2},
    "s4d": {"kind": "s4d", "state_size": 64},
    "linear_attention": {"kind": "linear_attention", "heads": 4, "feature_dim": 16},
    "attention": {"kind": "attention", **HEADS},
    "selective_attention": {"kind": "selective_attention", **HEADS},
    "rwkv4_time_mix": {"kind": "rwkv4_time_mix"},
    "rwkv4_channel_mix": {"kind": "rwkv4_channel_mix"},
}
"""By case."""

FOUR = {"d_model": WIDTH, "num_heads": 4}
LONG = {"d_model": WIDTH, "l_max": LENGTH}
PLAIN = {"width": WIDTH, "length": LENGTH}
BASED = {**LONG, "num_heads": 4, "num_key_value_heads": 4, "feature_dim": 16}
EXPLICIT = {**LONG, "kernel_size": -1, "implicit_long_conv": False}
THEIRS: dict[str, list[Peer]] = {
    "base_conv, 3 taps": [Peer("zoology", "BaseConv", "base_conv", {**LONG, "kernel_size": 3})],
    "base_conv, explicit": [Peer("zoology", "BaseConv", "base_conv", EXPLICIT)],
    "base_conv, implicit": [Peer("zoology", "BaseConv", "base_conv", {**LONG, "kernel_size": -1})],
    "long_convolution": [Peer("zoology", "LongConvolution", "convolution", LONG)],
    "long_convolution, safari": [
        Peer("plain", "PlainLongConvolution", "", {**PLAIN, "filters": 2, "squash": 0.1})
    ],
    "hyena": [
        Peer("zoology", "Hyena", "hyena", LONG),
        Peer("plain", "PlainHyena", "", {**PLAIN, "order": 2}),
    ],
    "hyena, order 3": [Peer("plain", "PlainHyena", "", {**PLAIN, "order": 3})],
    "h3": [Peer("zoology", "H3", "h3.h3", {**LONG, "d_state": 64})],
    "h3, head_dim 2": [Peer("zoology", "H3", "h3.h3", {**LONG, "d_state": 64, "head_dim": 2})],
    "s4d": [Peer("plain", "PlainS4D", "", {"width": WIDTH, "state_size": 64})],
    "linear_attention": [
        Peer("zoology", "Based", "based", {**BASED, "train_view": "linear"}, "linear"),
        Peer("zoology", "Based", "based", {**BASED, "train_view": "quadratic"}, "quadratic"),
    ],
    "attention": [Peer("zoology", "MHA", "attention", FOUR)],
    "selective_attention": [Peer("zoology", "SigmoidLookups", "selective", FOUR)],
    "rwkv4_time_mix": [Peer("transformers", "RwkvSelfAttention", "", PLAIN)],
    "rwkv4_channel_mix": [Peer("transformers", "RwkvFeedForward", "", PLAIN)],
}
"""The others of each case."""

SLOW = {"h3", "h3, head_dim 2", "linear_attention", "rwkv4_time_mix", "s4d"}
"""Cases in which another one needs seconds for a turn: two turns are enough."""
