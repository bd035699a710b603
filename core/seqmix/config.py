"""The configuration of a model: what is stacked, how wide, and how positions are told apart.

Read from JSON or TOML. Unknown keys are errors that suggest near ones; the options of a branch and
of the position encoding are checked against the ``Config`` of the plugin that their ``kind`` names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

from pydantic import BaseModel, Field, PositiveInt, ValidationError, model_validator

from seqmix.blocks import (
    STEP_FORMS,
    BlockConfig,
    Kind,
    Replacement,
    Step,
    Strict,
    check_branch_count,
    spread_places,
)
from seqmix.errors import ConfigError, did_you_mean
from seqmix.reading import UnreadableError, parse_json, parse_toml, read_text

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
    "read_options",
    "spread_places",
]

Parsed = TypeVar("Parsed", bound=BaseModel)

LONGEST = 1 << 20
"""Bytes of a file: the largest configurations, of a hundred layers unlike each other, have 100 kB,
and each value that does not fit takes a thousand times its own size to explain."""

MOST_TOKENS, WIDEST, WIDEST_HEAD = 2**31 - 1, 1 << 20, 1 << 16
"""Bounds of a model's sizes, some 50 times what is known: a table of positions is computed in real
memory, and products of sizes must be numbers of 64 bits."""
_PROBLEMS = 20
"""That an error explains."""

Token: TypeAlias = Annotated[int, Field(ge=-(2**31), le=MOST_TOKENS)]

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
    vocab_size: PositiveInt = Field(le=MOST_TOKENS)
    width: PositiveInt = Field(le=WIDEST)
    context_length: PositiveInt
    blocks: list[BlockConfig] = Field(min_length=1)
    norm: NormConfig = NormConfig()
    position: Kind | None = None
    head_dim: PositiveInt | None = Field(default=None, le=WIDEST_HEAD)
    """Size of the vectors that the position encoding rotates; needed with one that rotates."""
    tie_embeddings: bool = False
    logit_soft_cap: float = Field(default=0, ge=0)
    """Logits become ``cap * tanh(logits / cap)``, so that none exceeds it; 0 for no cap."""
    init_std: float = Field(default=INIT_STD, gt=0)
    """Standard deviation of fresh embeddings and of a fresh head."""
    dtype: Literal["f32", "bf16", "f16", "f64"] = "f32"
    bos: Token | None = None
    eos: list[Token] = Field(default_factory=list)

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        check_branch_count(self.blocks)
        return self

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
        problems = [_explain(schema, problem) for problem in ordered[:_PROBLEMS]]
        if more := len(ordered) - len(problems):
            problems.append(f"and {more} more")
        raise ConfigError(f"{where}: " + "; ".join(problems)) from error


def read_config(path: Path) -> ModelConfig:
    """A model configuration from a ``.json`` or ``.toml`` file."""
    return build_config(ModelConfig, read_options(path), str(path))


def read_options(path: Path) -> Any:
    """What a ``.toml`` file holds, or a JSON one; ConfigError when it cannot be read."""
    try:
        text = read_text(path, LONGEST)
        return parse_toml(text) if path.suffix == ".toml" else parse_json(text)
    except UnreadableError as error:
        raise ConfigError(f"{path}: {error}") from error


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
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # A number of thousands of digits, or lists without end.
        return f"what cannot be shown ({type(value).__name__})"
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
