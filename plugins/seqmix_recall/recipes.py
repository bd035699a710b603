"""The models of an MQAR sweep by name: what stands in their layers.

A recipe is one mixer, or several that the layers take in turn: ``base_conv+attention``. Some have
a size behind a colon: ``based:16``. Models are as in the experiments of the Zoology paper (Arora
et al. 2023, figure 2): layers of one mixer each, with layer norms and no feed-forward branch, tied
embeddings, and learned positions where attention stands alone.

Sizes: D width, S tokens of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from seqmix import registry
from seqmix.config import ModelConfig
from seqmix.errors import ConfigError, did_you_mean
from seqmix.families import Options, gpt_config

__all__ = ["PARTS", "Part", "Place", "model_of", "parts_of"]


@dataclass(frozen=True)
class Place:
    """Where a mixer stands, and the ``size`` behind its name, None without one."""

    width: int
    length: int
    layer: int
    layers: int
    size: int | None = None


Make: TypeAlias = Callable[[Place], Options]


@dataclass(frozen=True)
class Part:
    """A mixer of a recipe; ``size`` is what a number behind its name means, if it may have one."""

    summary: str
    make: Make
    size: str = ""
    attends: bool = False
    """Whether it tells positions apart by an encoding alone."""


def model_of(
    recipe: str, *, width: int, length: int, layers: int, vocab_size: int, name: str = ""
) -> ModelConfig:
    """The model of a recipe for rows of ``length`` tokens; ConfigError for one that is unknown."""
    parts = parts_of(recipe)
    turn = len(parts)
    if turn > layers:
        raise ConfigError(
            f"mixers '{recipe}': {turn} in turn, but layers = {layers}, so that some would never "
            f"be used; make it {turn} at least"
        )
    mixers = [
        part.make(Place(width, length, layer, layers, size))
        for layer, (part, size) in ((i, parts[i % turn]) for i in range(layers))
    ]
    alone = all(part.attends for part, _ in parts)
    return gpt_config(
        vocab_size,
        width,
        layers,
        mixer=mixers,
        mlp=None,
        position="learned" if alone else "none",
        context_length=length,
        name=name or recipe,
    )


def parts_of(recipe: str) -> list[tuple[Part, int | None]]:
    """The mixers of a recipe with their sizes; ConfigError for unknown names and odd sizes."""
    found: list[tuple[Part, int | None]] = []
    for text in recipe.split("+"):
        name, _, number = text.strip().partition(":")
        if name == "based":
            found += [(PARTS["short_conv"], None), _part(f"linear_attention:{number or 8}", recipe)]
        else:
            found.append(_part(text.strip(), recipe))
    return found


def _part(text: str, recipe: str) -> tuple[Part, int | None]:
    name, colon, number = text.partition(":")
    part = PARTS.get(name) or _registered(name, recipe)
    if not colon:
        return part, None
    if not part.size:
        raise ConfigError(f"mixers '{recipe}': '{name}' has no size; write '{name}' alone")
    if not number.isdecimal() or int(number) < 1:
        raise ConfigError(
            f"mixers '{recipe}': '{number}' behind '{name}:' should be its {part.size}, a number "
            "from 1"
        )
    return part, int(number)


def _registered(name: str, recipe: str) -> Part:
    """Any other mixer that is installed, with default options."""
    known = registry.names("mixers")
    if name in known:
        return Part(f"the mixer '{name}' with default options", lambda _: {"kind": name})
    names = [*PARTS, "based", *known]
    raise ConfigError(
        f"mixers '{recipe}': no recipe '{name}'{did_you_mean(name, names)}; recipes: "
        f"{', '.join([*PARTS, 'based'])}, and any mixer that 'seqmix plugins' lists"
    )


def _attention(place: Place) -> Options:
    heads = place.size or 1
    return {"kind": "attention", "heads": heads, "head_dim": _divided(place, heads, "attention")}


def _window(place: Place) -> Options:
    return {"kind": "attention", "heads": 1, "head_dim": place.width, "window": place.size or 16}


def _selective(place: Place, **options: Any) -> Options:
    return {"kind": "selective_attention", "heads": 1, "head_dim": place.width, **options}


def _learned(place: Place) -> Options:
    return _selective(
        place,
        selection="learned",
        budget="sqrt",
        budget_factor=float(place.size or 2.5),
        dense_training=True,
        sparsity_penalty=LEARNED_PENALTY,
    )


def _programmatic(place: Place) -> Options:
    return _selective(place, selection="programmatic", budget="sqrt", budget_factor=2.0)


def _random(place: Place) -> Options:
    return _selective(place, selection="random", probability=0.25, seed=place.layer)


def _short_conv(place: Place) -> Options:
    return {"kind": "base_conv", "taps": 3}


def _base_conv(place: Place) -> Options:
    if place.layer % 2 == 0:
        return _short_conv(place)
    implicit = {"reference_length": place.length}
    return {"kind": "base_conv", "filter": "implicit", "form": "skip", "implicit": implicit}


def _hyena(place: Place) -> Options:
    return {"kind": "hyena", "gates": "zoology", "filter": {"reference_length": place.length}}


def _h3(place: Place) -> Options:
    return {"kind": "h3", "state_size": place.size or place.length, "head_dim": 2}


def _rwkv4(place: Place) -> Options:
    return {"kind": "rwkv4_time_mix", "block": place.layer, "blocks": place.layers}


def _mlstm(place: Place) -> Options:
    heads = place.size or 1
    return {"kind": "mlstm", "heads": heads, "qk_dim_factor": 1.0, "blocks": place.layers}


def _retention(place: Place) -> Options:
    return {"kind": "retention", "heads": place.size or 1}


def _linear_attention(place: Place) -> Options:
    return {"kind": "linear_attention", "feature_dim": place.size or 16}


def _divided(place: Place, heads: int, name: str) -> int:
    if place.width % heads:
        raise ConfigError(
            f"recipe '{name}:{heads}': width {place.width} is no multiple of {heads} heads; choose "
            "other dims, or other heads"
        )
    return place.width // heads


LEARNED_PENALTY = 0.1
"""Enough that a hybrid of width 64 does not select what it does not need: some of a row's budget
has to be left when its queries come."""

PARTS: dict[str, Part] = {
    "attention": Part("softmax attention", _attention, "number of heads (1)", attends=True),
    "window": Part("attention to the last tokens", _window, "window (16)", attends=True),
    "learned": Part(
        "attention from positions that a learned score selects, ceil(factor * sqrt(S)) at most",
        _learned,
        "factor (2.5)",
        attends=True,
    ),
    "programmatic": Part(
        "attention from repeated bigrams, ceil(2 sqrt(S)) at most", _programmatic, attends=True
    ),
    "random": Part("attention from a random quarter of the positions", _random, attends=True),
    "base_conv": Part(
        "BaseConv, in turn with 3 taps and with an implicit filter of the whole row", _base_conv
    ),
    "short_conv": Part("BaseConv with 3 taps", _short_conv),
    "hyena": Part("Hyena of order 2", _hyena),
    "h3": Part("H3 with heads of 2 channels", _h3, "state size (the row's length)"),
    "rwkv4": Part("RWKV-4 time mixing", _rwkv4),
    "mlstm": Part("mLSTM with keys as wide as the model", _mlstm, "number of heads (1)"),
    "retention": Part("retention", _retention, "number of heads (1)"),
    "linear_attention": Part(
        "linear attention with Taylor features", _linear_attention, "size of a query (16)"
    ),
}
"""Recipes of one mixer; ``based`` is ``short_conv+linear_attention:8``."""
