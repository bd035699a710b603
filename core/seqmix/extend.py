"""Extending a model's context: ``extend(config, "yarn:2")`` fills in what a scaling needs."""

from __future__ import annotations

from typing import Any, cast

from seqmix import registry
from seqmix.config import Kind, ModelConfig, build_config
from seqmix.errors import ConfigError
from seqmix.position import PositionEncoding

__all__ = ["extend"]


def extend(config: ModelConfig, spec: str) -> ModelConfig:
    """The model with its rotary encoding scaled: ``KIND:FACTOR``, ``yarn:2`` for twice the context.

    Options of the old encoding that the new one has too are kept; the factor multiplies the context
    length, and the length before it becomes ``original_context_length``. A fixed scale holds at
    every length, short ones included. Raises ConfigError for a spec that does not fit the model.
    """
    kind, _, text = spec.partition(":")
    if config.position is None:
        raise ConfigError(f"model '{config.name}' has no position encoding that could be extended")
    if "factor" in config.position.options:
        raise ConfigError(
            f"model '{config.name}' is extended already ('{config.position.kind}', factor "
            f"{config.position.options['factor']}); start from the original one"
        )
    factor = _factor(spec, text)
    schema = cast(type[PositionEncoding], registry.get("positions", kind)).Config
    fields = schema.model_fields
    if "factor" not in fields:
        raise ConfigError(
            f"position encoding '{kind}' takes no factor; a scaling such as yarn does"
        )
    options: dict[str, Any] = {k: v for k, v in config.position.options.items() if k in fields}
    options["factor"] = factor
    if "original_context_length" in fields:
        options["original_context_length"] = config.context_length
    build_config(schema, options, f"position encoding '{kind}'")
    return config.with_position(Kind(kind=kind, **options), int(config.context_length * factor))


def _factor(spec: str, text: str) -> float:
    try:
        factor = float(text)
    except ValueError as error:
        raise ConfigError(f"'{spec}' should read KIND:FACTOR, such as yarn:2") from error
    if not 1 <= factor < 1e6:
        raise ConfigError(f"'{spec}': the factor should be at least 1, found {text}")
    return factor
