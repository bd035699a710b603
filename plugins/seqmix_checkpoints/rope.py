"""Rotary settings of foreign configurations as a position encoding."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from seqmix.config import Kind
from seqmix.errors import CheckpointError, did_you_mean
from seqmix_checkpoints.rope_types import KEYS, ORIGINAL, TYPES, RopeType
from seqmix_checkpoints.settings import number, shown

__all__ = ["read_rope"]

_PART = "partial_rotary_factor"


def read_rope(data: Mapping[str, Any], where: str, head_dim: int | None = None) -> tuple[Kind, int]:
    """Position encoding and context length of a ``config.json``.

    ``head_dim`` is given for families that rotate a part of each head, and None for the others.

    ``rope_parameters`` (transformers 5) and ``rope_scaling`` (transformers 4) mean the same, and so
    do ``type`` and ``rope_type`` inside, and settings per type of layer that are all equal. An
    original length beside them goes before the one inside. An explicit factor is never replaced by
    the ratio of the lengths; a warning says when the two differ. Raises CheckpointError for what is
    missing, unknown or of the wrong kind.
    """
    trained = _length(data.get("max_position_embeddings", 2048), "max_position_embeddings", where)
    rope = _settings(data, where)
    kind = _kind(rope, where)
    type = TYPES[kind]
    _check_keys(rope, kind, where)
    options: dict[str, Any] = {
        "theta": number(rope.get("rope_theta", data.get("rope_theta", 10000.0)), "theta", where)
    }
    options |= {
        ours: _value(rope[theirs], theirs, where)
        for theirs, ours in type.options.items()
        if rope.get(theirs) is not None and not (theirs in type.zero_is_none and rope[theirs] == 0)
    }
    if kind != "proportional":
        options |= _part(data, rope, where, head_dim)
    original = _original(data, rope, trained, kind, where)
    if type.lengths:
        options["original_context_length"] = trained if kind == "dynamic" else original
    if type.ratio:
        options["factor"] = _factor(rope, trained, original, where)
    return Kind(kind=type.kind, **options), _context(type, options, rope, trained, original)


def _context(
    type: RopeType, options: Mapping[str, Any], rope: Mapping[str, Any], trained: int, original: int
) -> int:
    """The longest sequence: what was trained, or further where a factor over it reaches."""
    factor = options.get("rate", options.get("factor", 1.0))
    if type.kind in ("longrope", "proportional"):
        return trained
    if type.kind == "linear" and rope.get(ORIGINAL) is None:
        # Where no original length is told, max_position_embeddings is the extended one already.
        return trained
    base = trained if type.kind == "dynamic-ntk" else original
    return max(trained, round(float(factor) * base)) if type.kind != "rope" else trained


def _settings(data: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    names = ("rope_parameters", "rope_scaling")
    given = {name: data[name] for name in names if data.get(name) is not None}
    for name, rope in given.items():
        if not isinstance(rope, Mapping):
            raise CheckpointError(
                f"{where}: {name} should be an object with rope_type and its options, "
                f"found {shown(rope)}"
            )
    if len(given) == 2 and given["rope_parameters"] != given["rope_scaling"]:
        raise CheckpointError(
            f"{where}: rope_parameters and rope_scaling mean the same but differ, "
            f"found {shown(given['rope_parameters'])} and {shown(given['rope_scaling'])}; "
            "remove one"
        )
    return _of_all_layers(next(iter(given.values()), {}), where)


def _of_all_layers(rope: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Settings that stand under each type of layer, where they are the same for all."""
    if not rope or not all(isinstance(part, Mapping) for part in rope.values()):
        return rope
    first, *others = rope.values()
    if any(part != first for part in others):
        raise CheckpointError(
            f"{where}: rope settings differ between {' and '.join(map(repr, rope))}; "
            "one encoding for all layers is supported"
        )
    found: Mapping[str, Any] = first
    return found


def _kind(rope: Mapping[str, Any], where: str) -> str:
    kind = rope.get("rope_type", rope.get("type")) or "default"
    if "rope_type" in rope and "type" in rope and rope["rope_type"] != rope["type"]:
        raise CheckpointError(
            f"{where}: rope_type is {shown(rope['rope_type'])} but type is {shown(rope['type'])}; "
            "they mean the same, remove one"
        )
    if not isinstance(kind, str) or kind not in TYPES:
        raise CheckpointError(
            f"{where}: rope type {shown(kind)} is not supported"
            f"{did_you_mean(str(kind)[:80], TYPES)}; supported: {', '.join(TYPES)}"
        )
    return kind


def _check_keys(rope: Mapping[str, Any], kind: str, where: str) -> None:
    """Unknown and missing keys are errors; one that only other types read is worth a warning."""
    for key in rope:
        if key not in KEYS:
            raise CheckpointError(
                f"{where}: unknown rope key '{key[:80]}'{did_you_mean(key[:80], KEYS)}; "
                f"known: {', '.join(KEYS)}"
            )
    missing = [key for key in TYPES[kind].needs if rope.get(key) is None]
    if missing:
        raise CheckpointError(
            f"{where}: rope type '{kind}' needs {' and '.join(map(repr, missing))}"
        )
    unused = [k for k, v in rope.items() if v is not None and k not in TYPES[kind].keys]
    if unused:
        warnings.warn(
            f"{where}: rope type '{kind}' does not read {', '.join(unused)}", stacklevel=4
        )


def _original(
    data: Mapping[str, Any], rope: Mapping[str, Any], trained: int, kind: str, where: str
) -> int:
    """The length before the extension; one beside the settings goes before the one inside."""
    given = [value for value in (data.get(ORIGINAL), rope.get(ORIGINAL)) if value is not None]
    if given:
        return _length(given[0], ORIGINAL, where)
    if TYPES[kind].lengths and kind != "dynamic":
        warnings.warn(
            f"{where}: rope type '{kind}' should have {ORIGINAL}; "
            f"max_position_embeddings = {trained} is taken for it",
            stacklevel=4,
        )
    return trained


def _factor(rope: Mapping[str, Any], trained: int, original: int, where: str) -> float:
    """The explicit factor, else the ratio of the lengths."""
    ratio = trained / original
    if rope.get("factor") is None:
        return ratio
    factor = number(rope["factor"], "factor", where)
    if factor > 0 and ratio not in (1.0, factor):
        warnings.warn(
            f"{where}: factor is {factor:g}, but max_position_embeddings / {ORIGINAL} is "
            f"{trained} / {original} = {ratio:g}; the factor is taken",
            stacklevel=4,
        )
    return factor


def _value(value: Any, name: str, where: str) -> Any:
    """A number, a list of them, or true or false."""
    if isinstance(value, bool):
        return value
    if isinstance(value, list):
        return [number(one, name, where) for one in value]
    return number(value, name, where)


def _part(
    data: Mapping[str, Any], rope: Mapping[str, Any], where: str, head_dim: int | None
) -> dict[str, Any]:
    """The option that rotates a part of each head, where that is not the whole of it."""
    given = [value for value in (rope.get(_PART), data.get(_PART)) if value is not None]
    if head_dim is None:
        if any(value != 1 for value in given):
            raise CheckpointError(
                f"{where}: {_PART} should be 1 in this family, found {shown(given[0])}"
            )
        return {}
    factor = number(given[0], _PART, where) if given else 1.0
    size = int(head_dim * factor)
    if not 0 < factor <= 1 or size < 2 or size % 2:
        raise CheckpointError(
            f"{where}: {_PART} (rotary_pct) {factor} of a head of {head_dim} should be an even "
            f"number of entries from 2 to {head_dim}, found {size}"
        )
    return {} if size == head_dim else {"rotary_dim": size}


def _length(value: Any, name: str, where: str) -> int:
    if type(value) is not int or not 1 <= value < 2**40:
        raise CheckpointError(f"{where}: {name} should be a number of tokens, found {shown(value)}")
    return value
