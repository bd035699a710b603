"""Extending a model's context: ``extend(model, "yarn:2")`` fills in what a scaling needs."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

from seqmix import registry
from seqmix.config import BlockConfig, Kind, ModelConfig, build_config
from seqmix.errors import ConfigError
from seqmix.position import PositionEncoding

if TYPE_CHECKING:
    from seqmix.model import Model

__all__ = ["StandsIn", "extend"]

Subject = TypeVar("Subject", bound="ModelConfig | Model")

_UNTOLD = 2.0
"""How far a scaling that follows the length is meant to go when no factor is given."""


@runtime_checkable
class StandsIn(Protocol):
    """A mixer class that extends a model in place of its attention, with the same weights."""

    def instead_of_attention(
        self, attention: Kind, rotation: Kind, context_length: int, value: str
    ) -> Kind:
        """The mixer for one attention layer of a model with the position encoding ``rotation``.

        ``value`` is what follows the name and a colon, or empty. ConfigError where it does not fit.
        """


def extend(subject: Subject, target: str | int, method: str = "yarn") -> Subject:
    """A configuration or a model with its rotary encoding scaled; ``subject`` stays as it is.

    ``target`` is ``KIND:FACTOR``, such as ``yarn:2`` for twice the context; or ``KIND`` alone for a
    scaling that follows the length, such as ``dynamic-yarn`` (meant for twice the context unless a
    factor says more); or ``none``; or the length in tokens that ``method`` should reach.

    A mixer that can stand in for attention extends a model as well, as ``rerope:W`` and
    ``lm-infinite:W`` do with a window of W tokens: it takes the place of every attention layer and
    its weights, and the model has no position encoding then.

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
    kind, _, text = target.partition(":") if isinstance(target, str) else (method, "", "")
    if (mixer := _standing_in(kind)) is not None:
        length = target if isinstance(target, int) else round(_UNTOLD * config.context_length)
        _reaching(config, length)
        return _replaced(config, config.position, mixer, text, length)
    if isinstance(target, str):
        cls = _encoding(kind)
        factor = _factor(target, text, cls)
    else:
        cls = _encoding(method)
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


def _standing_in(kind: str) -> StandsIn | None:
    """The mixer of that name, its words joined by either sign, if it stands in for attention."""
    name = kind.replace("-", "_")
    if kind in registry.names("positions") or name not in registry.names("mixers"):
        return None
    found = registry.get("mixers", name)
    return found if isinstance(found, StandsIn) else None


def _replaced(
    config: ModelConfig, position: Kind, mixer: StandsIn, value: str, length: int
) -> ModelConfig:
    """Every attention layer replaced, without a position encoding."""
    _refuse_twice(position, config.name)
    if not any(branch.kind == "attention" for branch in config.branches()):
        raise ConfigError(f"model '{config.name}' has no mixer 'attention' that could be replaced")

    def instead(branch: Kind) -> Kind:
        if branch.kind != "attention":
            return branch
        return mixer.instead_of_attention(branch, position, config.context_length, value)

    blocks = [_with_branches(block, instead) for block in config.blocks]
    changes = {"blocks": blocks, "position": None, "head_dim": None, "context_length": length}
    return config.model_copy(update=changes)


def _with_branches(block: BlockConfig, instead: Callable[[Kind], Kind]) -> BlockConfig:
    """A block whose every branch went through ``instead``, those of replacements too."""

    def step(given: Kind | list[Kind]) -> Kind | list[Kind]:
        return instead(given) if isinstance(given, Kind) else [instead(b) for b in given]

    steps = [step(s) for s in block.steps]
    others = [r.model_copy(update={"by": step(r.by)}) for r in block.replace]
    return block.model_copy(update={"steps": steps, "replace": others})


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
    """The model with another encoding or other mixers, every weight of it shared."""
    import torch

    from seqmix.model import Model

    if config == model.config:
        return copy.copy(model)

    with torch.device("meta"):
        made = Model(config).train(model.training)
    if made.position is not None and model.dtype == torch.float64:
        made.position.double()
    if config.blocks == model.config.blocks:
        other = copy.copy(model)
        other.__dict__["_modules"] = {**model._modules, "position": made.position}
        other.config = config
        return other
    for new, old in zip(made.branches(), model.branches(), strict=True):
        mixer = old.mixer
        if type(new.mixer) is not type(mixer):
            mixer = new.mixer
            mixer.__dict__["_modules"] = dict(old.mixer._modules)
        new.__dict__["_modules"] = {"norm": old.norm, "mixer": mixer}
    parts = {**model._modules, "steps": made.steps, "position": made.position}
    made.__dict__["_modules"] = parts
    return made
