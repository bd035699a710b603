"""``genai_config.json``: what ``onnxruntime-genai`` needs beside a file to generate text with it.

It runs models whose state is one cache of keys and one of values per layer, all of one shape and
growing from nothing; for any other model there is nothing to write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqmix.config import ModelConfig
from seqmix.model import state_specs
from seqmix.state import StateSpec
from seqmix_ir.graph import Module
from seqmix_onnxruntime.interface import Interface
from seqmix_onnxruntime.model_file import MODEL

__all__ = ["GENAI", "genai_config"]

GENAI = "genai_config.json"

_TYPE = "llama"
"""What genai calls a decoder whose inputs are these; it computes what the file says."""

_ROLES = {"key", "value", "key_positions"}


def genai_config(
    module: Module, interface: Interface, config: ModelConfig
) -> dict[str, Any] | None:
    """The content of the file, or None for a model that genai has no caches for."""
    specs = state_specs(config) if interface.positions else []
    shape = _cache_shape(specs)
    if shape is None or len(interface.grown) != len(specs):
        return None
    heads, size = shape
    ends = config.eos[0] if len(config.eos) == 1 else list(config.eos)
    first = config.eos[0] if config.eos else 0
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": MODEL,
        "head_size": size,
        "hidden_size": config.width,
        "num_attention_heads": _query_heads(module, heads),
        "num_hidden_layers": len(specs),
        "num_key_value_heads": heads,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "position_ids": "position_ids",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    return {
        "model": {
            "type": _TYPE,
            "vocab_size": config.vocab_size,
            "context_length": config.context_length,
            "bos_token_id": first if config.bos is None else config.bos,
            "eos_token_id": ends,
            "pad_token_id": first,
            "decoder": decoder,
        },
        "search": _search(config.context_length),
    }


def _search(longest: int) -> dict[str, Any]:
    """Greedy, with caches that grow: the file appends to what it is given."""
    return {
        "do_sample": False,
        "max_length": longest,
        "min_length": 0,
        "num_beams": 1,
        "num_return_sequences": 1,
        "past_present_share_buffer": False,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_k": 1,
        "top_p": 1.0,
    }


def _cache_shape(specs: list[dict[str, StateSpec]]) -> tuple[int, int] | None:
    """Heads and size of the caches, if all layers have those of one shape and nothing else."""
    shapes = {_shape_of(spec) for spec in specs}
    return next(iter(shapes)) if len(shapes) == 1 else None


def _shape_of(spec: Mapping[str, StateSpec]) -> tuple[int, int] | None:
    by_role = {entry.role: entry for entry in spec.values()}
    if set(by_role) != _ROLES or len(spec) != len(_ROLES):
        return None
    key, value = by_role["key"], by_role["value"]
    if key.axes != value.axes or not all(entry.grows for entry in spec.values()):
        return None
    batch, heads, slots, size = key.axes if len(key.axes) == 4 else (None,) * 4
    if (batch, slots) != ("B", "P") or not isinstance(heads, int) or not isinstance(size, int):
        return None
    return heads, size


def _query_heads(module: Module, otherwise: int) -> int:
    """The heads of the first attention; those of the cache where it was taken apart."""
    for graph in module.graphs:
        for op in graph.block.walk():
            queries = op.operands[0] if op.name == "attention" else None
            heads = None if queries is None else queries.type.shape[1]
            if isinstance(heads, int):
                return heads
    return otherwise
