"""One configuration of every registered mixer, for a model of width 256."""

from __future__ import annotations

from typing import Any

from seqmix import registry

__all__ = ["CASES", "WIDTH", "missing", "options"]

WIDTH = 256
HEADS = {"heads": 4, "head_dim": 64}
SPARSE = {**HEADS, "kind": "selective_attention", "budget": "sqrt"}
REFERENCE = {"reference_length": 16384}
PROMPT = 0
"""Stands for as many taps as the prompt has tokens."""

CASES: dict[str, dict[str, Any]] = {
    "attention": {"kind": "attention", **HEADS},
    "attention, window 256": {"kind": "attention", **HEADS, "window": 256},
    "rerope, window 256": {"kind": "rerope", **HEADS, "window": 256},
    "lm_infinite, window 256": {"kind": "lm_infinite", **HEADS, "window": 256},
    "selective, learned": {**SPARSE, "selection": "learned"},
    "selective, programmatic": {**SPARSE, "selection": "programmatic"},
    "selective, random": {**SPARSE, "selection": "random"},
    "base_conv, 3 taps": {"kind": "base_conv", "taps": 3},
    "base_conv, explicit": {"kind": "base_conv", "filter": "explicit", "taps": PROMPT},
    "base_conv, implicit": {
        "kind": "base_conv",
        "filter": "implicit",
        "implicit": REFERENCE,
    },
    "long_convolution": {"kind": "long_convolution", "taps": PROMPT},
    "hyena": {"kind": "hyena", "filter": REFERENCE},
    "input_dependent_conv": {"kind": "input_dependent_conv", "heads": 4},
    "h3": {"kind": "h3"},
    "s4d": {"kind": "s4d"},
    "liquid_s4": {"kind": "liquid_s4"},
    "selective_s4": {"kind": "selective_s4"},
    "linear_attention": {"kind": "linear_attention", "heads": 4},
    "retention": {"kind": "retention", "heads": 4},
    "rwkv4_time_mix": {"kind": "rwkv4_time_mix"},
    "rwkv4_channel_mix": {"kind": "rwkv4_channel_mix"},
    "mlstm": {"kind": "mlstm", "heads": 4},
    "mlstm_up": {"kind": "mlstm_up", "heads": 4},
    "slstm": {"kind": "slstm", "heads": 4},
    "swiglu": {"kind": "swiglu", "hidden": 4 * WIDTH},
    "mlp": {"kind": "mlp", "hidden": 4 * WIDTH},
}
"""By name."""


def options(case: str, length: int) -> dict[str, Any]:
    """Of a case, for a prompt of ``length`` tokens: an explicit filter reaches all of them."""
    found = CASES[case]
    return {**found, "taps": length} if found.get("taps") == PROMPT else found


def missing() -> set[str]:
    """Registered mixers that no case is for."""
    return set(registry.names("mixers")) - {case["kind"] for case in CASES.values()}
