"""What a mixer needs to stand in for the attention layers of a model with RoPE."""

from __future__ import annotations

from typing import Any

from seqmix.config import Kind
from seqmix.errors import ConfigError

__all__ = ["clipped_kind", "numbers_of"]

_ROTATION = ("theta", "rotary_dim", "layout")


def clipped_kind(name: str, attention: Kind, rotation: Kind, options: dict[str, Any]) -> Kind:
    """The mixer ``name`` with the sizes of an attention layer and the frequencies of a rotation.

    Raises ConfigError for a layer with a window of its own, and for a rotation other than ``rope``.
    """
    if rotation.kind != "rope":
        raise ConfigError(
            f"'{name}' turns queries and keys as 'rope' does, but the model's position encoding is "
            f"'{rotation.kind}'; it can stand in for attention in models with plain RoPE alone"
        )
    sizes = attention.options
    if sizes.pop("window", None) is not None:
        raise ConfigError(
            f"'{name}' stands in for attention to everything before, but a layer has window = "
            f"{attention.options['window']}: nothing beyond it is ever seen"
        )
    turned = {key: rotation.options[key] for key in _ROTATION if key in rotation.options}
    return Kind(kind=name, **sizes, **turned, **options)


def numbers_of(name: str, value: str, known: tuple[str, str]) -> tuple[int | None, int | None]:
    """The whole numbers of "", "A" or "A:B", None where missing; ConfigError for anything else."""
    parts = value.split(":") if value else []
    if len(parts) > len(known) or not all(part.isdecimal() and int(part) for part in parts):
        first, second = known
        raise ConfigError(
            f"'{name}:{value}' should read {name}, {name}:{first} or {name}:{first}:{second}, with "
            "whole numbers of at least 1"
        )
    found = [int(part) for part in parts] + [None, None]
    return found[0], found[1]
