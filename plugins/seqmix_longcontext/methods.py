"""The encodings that an evaluation compares, as the command line names them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seqmix.errors import ConfigError

if TYPE_CHECKING:
    from seqmix.config import ModelConfig
    from seqmix.model import Model
    from seqmix.position import PositionEncoding

__all__ = ["Method", "parse_method", "parse_methods"]

FORM = "KIND[:FACTOR][+option=value], such as yarn:2 or dynamic-yarn+granularity=256"


@dataclass(frozen=True)
class Method:
    """A position encoding in place of the model's own.

    ``target`` is what :func:`seqmix.extend.extend` takes, ``options`` replace options of the
    encoding that it makes; ``name`` is what tables and plots call it.
    """

    name: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def config(self, config: ModelConfig) -> ModelConfig:
        """The configuration with this encoding; ConfigError or PluginError where it cannot be."""
        from seqmix import registry
        from seqmix.config import Kind, build_config
        from seqmix.extend import extend

        changed = extend(config, self.target)
        if not self.options:
            return changed
        if changed.position is None:
            raise ConfigError(f"'{self.name}': model '{config.name}' has no position encoding")
        kind = changed.position.kind
        options = {**changed.position.options, **self.options}
        build_config(registry.get("positions", kind).Config, options, f"'{self.name}'")
        return changed.with_position(Kind(kind=kind, **options), changed.context_length)

    def apply(self, model: Model) -> Model:
        """A model with this encoding and the weights of ``model``, which stays as it is."""
        from seqmix.extend import extend

        config = self.config(model.config)
        if config == model.config:
            return model
        changed = extend(model, self.target)
        if self.options:
            changed.position = self._encoding(config, model)
            changed.config = config
        return changed

    def _encoding(self, config: ModelConfig, model: Model) -> PositionEncoding | None:
        """The encoding of a configuration; ConfigError for one whose weights are learned."""
        import torch

        from seqmix.model import Model

        with torch.device("meta"):
            position = Model(config).position
        if position is not None and any(True for _ in position.parameters()):
            raise ConfigError(
                f"'{self.name}': the encoding of model '{model.config.name}' was learned with its "
                "options; they cannot be changed"
            )
        if position is not None and model.dtype == torch.float64:
            position.double()
        return position


def parse_method(text: str) -> Method:
    """The method that a text such as ``yarn:2+attention_factor=1`` names; ConfigError for others.

    Values are JSON where they can be read as such, else plain text.
    """
    target, *settings = text.strip().split("+")
    if not target:
        raise ConfigError(f"--rope: '{text}' names no encoding; write {FORM}")
    options = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not key or not equals or not value:
            raise ConfigError(f"--rope: '{setting}' in '{text}' is no option; write {FORM}")
        options[key] = _value(value)
    return Method(text.strip(), target, options)


def parse_methods(text: str, config: ModelConfig) -> list[Method]:
    """The methods of a list with commas, each checked against the model before anything is slow."""
    methods = [parse_method(part) for part in text.split(",")]
    names = [method.name for method in methods]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"--rope: {', '.join(doubled)} is there more than once")
    for method in methods:
        method.config(config)
    return methods


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
