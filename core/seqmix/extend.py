"""Extending a model's context: ``extend(model, "yarn:2")`` fills in what a scaling needs."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any, TypeVar, cast

from seqmix import registry
from seqmix.config import Kind, ModelConfig, build_config
from seqmix.errors import ConfigError
from seqmix.position import PositionEncoding

if TYPE_CHECKING:
    from seqmix.model import Model

__all__ = ["extend"]

Subject = TypeVar("Subject", bound="ModelConfig | Model")

_UNTOLD = 2.0
"""How far a scaling that follows the length is meant to go when no factor is given."""


def extend(subject: Subject, target: str | int, method: str = "yarn") -> Subject:
    """A configuration or a model with its rotary encoding scaled; ``subject`` stays as it is.

    ``target`` is ``KIND:FACTOR``, such as ``yarn:2`` for twice the context; or ``KIND`` alone for a
    scaling that follows the length, such as ``dynamic-yarn`` (meant for twice the context unless a
    factor says more); or ``none``; or the length in tokens that ``method`` should reach.

    Options of the old encoding that the new one has too are kept; the factor multiplies the context
    length, and the length before it becomes ``original_context_length``. A fixed scale holds at
    every length, short ones included: there a scaling that follows the length costs no quality. An
    extended model is a new one, with the weights of the old. Raises ConfigError for a target that
    does not fit the model.
    """
    if isinstance(subject, ModelConfig):
        return cast(Subject, _extended(subject, target, method))
    model = cast("Model", subject)
    return cast(Subject, _with_config(model, _extended(model.config, target, method)))


def _extended(config: ModelConfig, target: str | int, method: str) -> ModelConfig:
    if target == "none":
        return config
    if config.position is None:
        raise ConfigError(f"model '{config.name}' has no position encoding that could be extended")
    if isinstance(target, str):
        kind, _, text = target.partition(":")
        cls = _encoding(kind)
        factor = _factor(target, text, cls)
    else:
        kind, cls = method, _encoding(method)
        factor = _reaching(config, target)
        if factor > 1 and not cls.follows_length:
            warnings.warn(
                f"'{kind}' scales by {factor:g} at every length, texts that fit the model's own "
                f"{config.context_length} tokens included; "
                "a dynamic scaling such as 'dynamic-yarn' leaves those as they are",
                stacklevel=3,
            )
    _refuse_twice(config.position, config.name)
    return _scaled(config, config.position, kind, cls, factor)


def _encoding(kind: str) -> type[PositionEncoding]:
    return cast(type[PositionEncoding], registry.get("positions", kind))


def _factor(spec: str, text: str, cls: type[PositionEncoding]) -> float:
    """The factor of ``KIND:FACTOR``, which a scaling that follows the length may leave out."""
    if not text and ":" not in spec and cls.follows_length:
        return _UNTOLD
    try:
        factor = float(text)
    except ValueError as error:
        raise ConfigError(f"'{spec}' should read KIND:FACTOR, such as yarn:2") from error
    if not 1 <= factor < 1e6:
        raise ConfigError(f"'{spec}': the factor should be at least 1, found {text}")
    return factor


def _reaching(config: ModelConfig, target: int) -> float:
    """The factor from the model's context to a length in tokens."""
    if target < config.context_length:
        raise ConfigError(
            f"model '{config.name}' reads {config.context_length} tokens already, found a target "
            f"of {target}; nothing needs to be extended"
        )
    return target / config.context_length


def _refuse_twice(position: Kind, name: str) -> None:
    """A factor on top of a factor would be neither of the two."""
    if "factor" in position.options:
        raise ConfigError(
            f"model '{name}' is extended already ('{position.kind}', factor "
            f"{position.options['factor']}); start from the original one"
        )
    if _encoding(position.kind).follows_length:
        raise ConfigError(
            f"model '{name}' is extended already ('{position.kind}'); start from the original one"
        )


def _scaled(
    config: ModelConfig, position: Kind, kind: str, cls: type[PositionEncoding], factor: float
) -> ModelConfig:
    fields = cls.Config.model_fields
    if "factor" not in fields and not cls.follows_length:
        raise ConfigError(
            f"position encoding '{kind}' takes no factor; a scaling such as yarn does"
        )
    options: dict[str, Any] = {k: v for k, v in position.options.items() if k in fields}
    if "factor" in fields:
        options["factor"] = factor
    if "original_context_length" in fields:
        options["original_context_length"] = config.context_length
    build_config(cls.Config, options, f"position encoding '{kind}'")
    # Rounded, not cut: a target length in tokens is met exactly.
    length = config.context_length * factor
    reached = round(length) if abs(length - round(length)) < 1e-6 else int(length)
    return config.with_position(Kind(kind=kind, **options), reached)


def _with_config(model: Model, config: ModelConfig) -> Model:
    """The model with another encoding, every other part of it shared."""
    import torch

    from seqmix.model import Model

    with torch.device("meta"):
        position = Model(config).position
    other = copy.copy(model)
    other.__dict__["_modules"] = {**model._modules, "position": position}
    other.config = config
    if position is not None and model.dtype == torch.float64:
        position.double()
    return other
