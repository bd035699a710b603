"""The metadata of a GGUF file as our configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seqmix.config import Kind, ModelConfig
from seqmix.errors import CheckpointError, did_you_mean
from seqmix_checkpoints.decoder import LAYERS, DecoderSizes, validated
from seqmix_checkpoints.gguf_header import GGUFHeader
from seqmix_checkpoints.layouts import LLAMA, QWEN2, QWEN3, Family

__all__ = ["Metadata", "config_of", "family_of"]

SCALINGS = ("none", "linear", "yarn", "longrope")
LISTS = ("factors_short", "factors_long")
# Mistral files call themselves llama.
ARCHITECTURES = {family.name: family for family in (LLAMA, QWEN2, QWEN3)}


class Metadata:
    """Typed access to the metadata of a file; ``{a}`` in a key is the architecture."""

    def __init__(self, header: GGUFHeader, family: Family) -> None:
        """Read from ``header``, which is of ``family``."""
        self.path: Path = header.path
        self.family = family
        self.values: Mapping[str, Any] = header.metadata

    def key(self, key: str) -> str:
        """A key as it stands in the file."""
        return key.replace("{a}", self.family.name)

    def get(self, key: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:
        """The value of a key, or ``default`` when it is missing."""
        key = self.key(key)
        value = self.values.get(key, default)
        wrong = not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool)
        if value is not default and wrong:
            raise CheckpointError(
                f"{self.path}: metadata '{key}' should be {kinds}, found {str(value)[:80]!r}"
            )
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """A number >= 1; without a default it has to be there."""
        value = self.get(key, int, default)
        if value is None or value < 1:
            raise CheckpointError(
                f"{self.path}: metadata '{self.key(key)}' should be a whole number >= 1, "
                f"found {value!r}"
            )
        return int(value)

    def real(self, key: str, default: float | None = None) -> float:
        """A float32 as the shortest decimal that means it, so that 1e-5 stays 1e-5."""
        value = self.get(key, (int, float), default)
        if value is None or not abs(value) < 1e12:
            raise CheckpointError(
                f"{self.path}: metadata '{self.key(key)}' should be a number, found {value!r}"
            )
        return float(str(np.float32(value)))


def family_of(header: GGUFHeader) -> Family:
    """The family of a file; CheckpointError when its architecture is none of ours."""
    found = header.metadata.get("general.architecture")
    if isinstance(found, str) and found in ARCHITECTURES:
        return ARCHITECTURES[found]
    raise CheckpointError(
        f"{header.path}: architecture {found!r} is not supported"
        f"{did_you_mean(str(found), ARCHITECTURES)}; supported: "
        f"{', '.join(map(repr, ARCHITECTURES))}"
    )


def config_of(
    header: GGUFHeader, meta: Metadata, lists: Callable[[str], list[float] | None]
) -> ModelConfig:
    """The configuration of a file; CheckpointError for what is wrong or not supported.

    ``lists`` gives the numbers of a small tensor by its name, None when there is no such tensor.
    """
    _refuse_features(header, meta)
    width, heads = meta.integer("{a}.embedding_length"), meta.integer("{a}.attention.head_count")
    head_dim = _head_dim(meta, width // heads or 1)
    layers = _layer_count(header, meta)
    embedding = header.tensors.get("token_embd.weight")
    rows = embedding.shape[0] if embedding and embedding.shape else None
    position, context_length = _position(meta, head_dim // 2, lists)
    bos, eos = (meta.get(f"tokenizer.ggml.{k}_token_id", int) for k in ("bos", "eos"))
    eot = meta.get("tokenizer.ggml.eot_token_id", int)
    sizes = DecoderSizes(
        name=header.path.stem,
        vocab_size=meta.integer("{a}.vocab_size", rows),
        width=width,
        heads=heads,
        kv_heads=meta.integer("{a}.attention.head_count_kv", heads),
        head_dim=head_dim,
        hidden=meta.integer("{a}.feed_forward_length"),
        eps=meta.real("{a}.attention.layer_norm_rms_epsilon", 1e-5),
        context_length=context_length,
        position=position,
        windows=(None,) * layers,
        tied="output.weight" not in header.tensors,
        bias="blk.0.attn_q.bias" in header.tensors,
        output_bias="blk.0.attn_output.bias" in header.tensors,
        qk_norm=meta.family is QWEN3,
        mlp_bias="blk.0.ffn_gate.bias" in header.tensors,
        bos=bos,
        eos=tuple(dict.fromkeys(i for i in (eos, eot) if i is not None)),
    )
    return validated(sizes, str(header.path))


def _layer_count(header: GGUFHeader, meta: Metadata) -> int:
    layers = meta.integer("{a}.block_count")
    if layers > min(len(header.tensors), LAYERS):
        raise CheckpointError(
            f"{header.path}: {meta.key('{a}.block_count')} is {layers}, found "
            f"{len(header.tensors)} tensors, and a model has at most {LAYERS} layers; the file is "
            "damaged, fetch it again"
        )
    return layers


def _head_dim(meta: Metadata, default: int) -> int:
    """The one size of queries, keys and values, all of it rotated."""
    size = meta.integer("{a}.attention.key_length", default)
    for key in ("{a}.rope.dimension_count", "{a}.attention.value_length"):
        if meta.integer(key, size) != size:
            raise CheckpointError(
                f"{meta.path}: {meta.key(key)} should be the head size {size}, "
                f"found {meta.values[meta.key(key)]}"
            )
    return size


def _refuse_features(header: GGUFHeader, meta: Metadata) -> None:
    if meta.get("{a}.expert_count", int, 0):
        raise CheckpointError(f"{header.path}: mixtures of experts are not supported")
    if window := meta.get("{a}.attention.sliding_window", int, 0):
        raise CheckpointError(
            f"{header.path}: a sliding window ({meta.key('{a}.attention.sliding_window')} = "
            f"{window}) is not supported, because the file does not say which layers have it; "
            "use the Hugging Face directory of the model"
        )
    if (parts := meta.get("split.count", int, 1)) > 1:
        raise CheckpointError(
            f"{header.path}: should be a whole model, found one of {parts} parts; "
            "join them with llama-gguf-split --merge"
        )


def _position(
    meta: Metadata, half: int, lists: Callable[[str], list[float] | None]
) -> tuple[Kind, int]:
    """Position encoding and context length; the latter is the extended one already.

    ``lists`` reads a tensor of divisors, one for each of ``half`` pairs, if the file has it.
    """
    theta = meta.real("{a}.rope.freq_base", 10000.0)
    context_length = meta.integer("{a}.context_length")
    kind = meta.get("{a}.rope.scaling.type", str, _unnamed_scaling(meta))
    original = meta.integer("{a}.rope.scaling.original_context_length", context_length)
    if kind in ("none", "longrope") and (found := _divided(lists, kind, half, meta)):
        found |= {"theta": theta, "original_context_length": original}
        return Kind(kind="longrope", **found), context_length
    if kind == "none":
        return Kind(kind="rope", theta=theta), context_length
    if kind == "linear":
        factor = meta.real("{a}.rope.scaling.factor", meta.real("{a}.rope.scale_linear", 1.0))
        return Kind(kind="linear", theta=theta, factor=factor), context_length
    if kind != "yarn":
        raise CheckpointError(
            f"{meta.path}: rope scaling '{kind}' is not supported{did_you_mean(kind, SCALINGS)}; "
            f"supported: {', '.join(SCALINGS)}"
        )
    factor = meta.real("{a}.rope.scaling.factor", context_length / original)
    options = {}
    for ours in ("attn_factor", "beta_fast", "beta_slow"):
        for key in (f"{{a}}.rope.scaling.{ours}", f"{{a}}.rope.scaling.yarn_{ours}"):
            if meta.key(key) in meta.values:
                options[ours] = meta.real(key)
    position = Kind(
        kind="yarn", theta=theta, factor=factor, original_context_length=original, **options
    )
    return position, max(context_length, round(factor * original))


def _divided(
    lists: Callable[[str], list[float] | None], kind: str, half: int, meta: Metadata
) -> dict[str, Any] | None:
    """Divisors that the file has as tensors: one list (llama3's), or a short and a long one."""
    found = {name: lists(f"rope_{name}.weight") for name in ("freqs", *LISTS)}
    given = {name: values for name, values in found.items() if values is not None}
    if not given and kind == "none":
        return None
    wanted = LISTS if kind == "longrope" else ("freqs",)
    if set(given) != set(wanted) or any(len(values) != half for values in given.values()):
        shown = {f"rope_{name}.weight": len(values) for name, values in given.items()}
        raise CheckpointError(
            f"{meta.path}: rope scaling '{kind}' should have "
            f"{' and '.join(f'rope_{name}.weight' for name in wanted)} of {half} divisors, "
            f"found {shown}"
        )
    short, long = (given[name] for name in (wanted * 2)[:2])
    key = "{a}.rope.scaling.attn_factor"
    return {"short_factor": short, "long_factor": long, "attention_factor": meta.real(key, 1.0)}


def _unnamed_scaling(meta: Metadata) -> str:
    """What llama.cpp understands when no type is named: a factor alone scales linearly."""
    keys = ("{a}.rope.scaling.factor", "{a}.rope.scale_linear")
    factors = [meta.real(key) for key in keys if meta.key(key) in meta.values]
    return "linear" if any(factor not in (0.0, 1.0) for factor in factors) else "none"
