"""The configuration of a model: what is stacked, how wide, and how positions are told apart.

Read from JSON or TOML. Unknown keys are errors that suggest near ones; the options of a branch and
of the position encoding are checked against the ``Config`` of the plugin that their ``kind`` names.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, PositiveInt, ValidationError

from seqmix.blocks import STEP_FORMS, BlockConfig, Kind, Replacement, Step, Strict, spread_places
from seqmix.errors import ConfigError, did_you_mean

__all__ = [
    "INIT_STD",
    "BlockConfig",
    "Kind",
    "ModelConfig",
    "NormConfig",
    "Replacement",
    "Step",
    "Strict",
    "build_config",
    "read_config",
    "spread_places",
]

Parsed = TypeVar("Parsed", bound=BaseModel)

INIT_STD = 0.02
"""Standard deviation of a fresh weight matrix, where nothing else is asked for."""


class NormConfig(Strict):
    """The normalization in front of every branch and of the head."""

    kind: Literal["rms", "layer"] = "rms"
    eps: float = Field(default=1e-5, gt=0)
    bias: bool = True
    """Whether a layer norm has a bias; an RMS norm never has one."""


class ModelConfig(Strict):
    """A whole model. ``context_length`` is the longest sequence it is meant for, in tokens."""

    name: str = "model"
    vocab_size: PositiveInt
    width: PositiveInt
    context_length: PositiveInt
    blocks: list[BlockConfig] = Field(min_length=1)
    norm: NormConfig = NormConfig()
    position: Kind | None = None
    head_dim: PositiveInt | None = None
    """Size of the vectors that the position encoding rotates; needed with one that rotates."""
    tie_embeddings: bool = False
    logit_soft_cap: float = Field(default=0, ge=0)
    """Logits become ``cap * tanh(logits / cap)``, so that none exceeds it; 0 for no cap."""
    init_std: float = Field(default=INIT_STD, gt=0)
    """Standard deviation of fresh embeddings and of a fresh head."""
    dtype: Literal["f32", "bf16", "f16", "f64"] = "f32"
    bos: int | None = None
    eos: list[int] = Field(default_factory=list)

    def steps(self) -> list[list[Kind]]:
        """Every residual step in order, each as its list of parallel branches."""
        return [step for block in self.blocks for layer in block.layers() for step in layer]

    def branches(self) -> list[Kind]:
        """Every branch in order."""
        return [branch for step in self.steps() for branch in step]

    def with_position(self, position: Kind, context_length: int) -> ModelConfig:
        """The same model with another position encoding and context length."""
        return self.model_copy(update={"position": position, "context_length": context_length})

    def to_json(self) -> str:
        """Indented JSON that :func:`read_config` reads back, exactly: options of None are kept."""
        return self.model_dump_json(indent=2) + "\n"


def build_config(schema: type[Parsed], options: Any, where: str) -> Parsed:
    """``options`` as ``schema``; ConfigError with the place, and near keys for unknown ones."""
    try:
        return schema.model_validate(options)
    except ValidationError as error:
        # A misspelt key comes first: a missing one often follows from it.
        ordered = sorted(error.errors(), key=lambda p: p["type"] != "extra_forbidden")
        problems = [_explain(schema, problem) for problem in ordered]
        raise ConfigError(f"{where}: " + "; ".join(problems)) from error


def read_config(path: Path) -> ModelConfig:
    """A model configuration from a ``.json`` or ``.toml`` file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    try:
        data = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: not valid {path.suffix.lstrip('.') or 'JSON'}: {error}"
        ) from error
    return build_config(ModelConfig, data, str(path))


def _explain(schema: type[BaseModel], problem: Any) -> str:
    loc = tuple(part for part in problem["loc"] if part not in STEP_FORMS)
    place = ".".join(map(str, loc)) or "configuration"
    if problem["type"] == "missing":
        return f"'{place}' is missing"
    if problem["type"] != "extra_forbidden":
        said = problem["msg"].removeprefix("Value error, ")
        return f"{place}: {said}, found {_short(problem['input'])}"
    fields = _fields_at(schema, loc[:-1])
    name = str(loc[-1])
    return f"unknown key '{place}'{did_you_mean(name, fields)}; known: {', '.join(fields)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _fields_at(schema: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """The keys that the schema knows at a nested place."""
    current: Any = schema
    for part in loc:
        if isinstance(part, str) and part in getattr(current, "model_fields", {}):
            current = _model_in(current.model_fields[part].annotation) or current
    return list(current.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        if (found := _model_in(inner)) is not None:
            return found
    return None
