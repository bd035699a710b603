"""Rotary settings of foreign configurations as a position encoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqmix.config import Kind
from seqmix.errors import CheckpointError, did_you_mean
from seqmix_checkpoints.settings import number

__all__ = ["SUPPORTED", "read_rope"]

SUPPORTED = ("default", "yarn")
YARN_OPTIONS = (
    "beta_fast",
    "beta_slow",
    "truncate",
    "attention_factor",
    "attn_factor",
    "mscale",
    "mscale_all_dim",
)
OTHER_KEYS = (
    "type",
    "rope_type",
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "partial_rotary_factor",
)


def read_rope(data: Mapping[str, Any], where: str, head_dim: int | None = None) -> tuple[Kind, int]:
    """Position encoding and context length of a ``config.json``.

    ``head_dim`` is given for families that rotate a part of each head, and None for the others.

    ``rope_parameters`` (transformers 5) and ``rope_scaling`` (transformers 4) mean the same, and so
    do ``type`` and ``rope_type`` inside. An original length beside them goes before the one inside.
    An explicit factor is never replaced by the ratio of the lengths.
    """
    trained = _length(data.get("max_position_embeddings", 2048), "max_position_embeddings", where)
    rope = _settings(data, where)
    theta = rope.get("rope_theta", data.get("rope_theta", 10000.0))
    kind = _kind(rope, where)
    _refuse_unknown(rope, where)
    part = _part(data, rope, where, head_dim)
    if kind == "default":
        return Kind(kind="rope", theta=number(theta, "rope_theta", where), **part), trained
    key = "original_max_position_embeddings"
    given = [value for value in (data.get(key), rope.get(key)) if value is not None]
    original = _length(given[0] if given else trained, key, where)
    factor = rope.get("factor")
    factor = trained / original if factor is None else number(factor, "factor", where)
    options = {k: rope[k] for k in YARN_OPTIONS if rope.get(k) is not None}
    options |= {k: number(v, k, where) for k, v in options.items() if k != "truncate"}
    position = Kind(
        kind="yarn",
        theta=number(theta, "rope_theta", where),
        factor=factor,
        original_context_length=original,
        **options,
        **part,
    )
    return position, max(trained, round(factor * original))


def _settings(data: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    names = ("rope_parameters", "rope_scaling")
    given = {name: data[name] for name in names if data.get(name) is not None}
    for name, rope in given.items():
        if not isinstance(rope, Mapping):
            raise CheckpointError(f"{where}: {name} should be an object, found {rope!r}")
    if len(given) == 2 and given["rope_parameters"] != given["rope_scaling"]:
        raise CheckpointError(
            f"{where}: rope_parameters and rope_scaling mean the same but differ, "
            f"found {given['rope_parameters']!r} and {given['rope_scaling']!r}; remove one"
        )
    return next(iter(given.values()), {})


def _kind(rope: Mapping[str, Any], where: str) -> str:
    kind = rope.get("rope_type", rope.get("type")) or "default"
    if "rope_type" in rope and "type" in rope and rope["rope_type"] != rope["type"]:
        raise CheckpointError(
            f"{where}: rope_type is {rope['rope_type']!r} but type is {rope['type']!r}; "
            "they mean the same, remove one"
        )
    if kind not in SUPPORTED:
        raise CheckpointError(
            f"{where}: rope type {kind!r} is not supported{did_you_mean(str(kind), SUPPORTED)}; "
            f"supported: {', '.join(SUPPORTED)}"
        )
    return str(kind)


def _refuse_unknown(rope: Mapping[str, Any], where: str) -> None:
    known = [*OTHER_KEYS, *YARN_OPTIONS]
    for key in rope:
        if key not in known:
            raise CheckpointError(
                f"{where}: unknown rope key '{key}'{did_you_mean(key, known)}; "
                f"known: {', '.join(known)}"
            )


def _part(
    data: Mapping[str, Any], rope: Mapping[str, Any], where: str, head_dim: int | None
) -> dict[str, Any]:
    """The option that rotates a part of each head, where that is not the whole of it."""
    key = "partial_rotary_factor"
    given = [value for value in (rope.get(key), data.get(key)) if value is not None]
    if head_dim is None:
        if any(value != 1 for value in given):
            raise CheckpointError(f"{where}: {key} should be 1 in this family, found {given[0]!r}")
        return {}
    factor = number(given[0], key, where) if given else 1.0
    size = int(head_dim * factor)
    if not 0 < factor <= 1 or size < 2 or size % 2:
        raise CheckpointError(
            f"{where}: {key} (rotary_pct) {factor} of a head of {head_dim} should be an even "
            f"number of entries from 2 to {head_dim}, found {size}"
        )
    return {} if size == head_dim else {"rotary_dim": size}


def _length(value: Any, name: str, where: str) -> int:
    if type(value) is not int or not 1 <= value < 2**40:
        raise CheckpointError(f"{where}: {name} should be a number of tokens, found {value!r}")
    return value
