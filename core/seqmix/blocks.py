"""Blocks of a configuration: residual steps that are repeated, with some layers unlike the others.

A layer is one repetition of a block's steps. A hybrid keeps the depth and puts another branch into
some of the layers: ``{"step": 0, "by": {"kind": "attention", ...}, "count": 3}``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Self, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveInt,
    Tag,
    model_validator,
)

__all__ = [
    "MOST_BRANCHES",
    "STEP_FORMS",
    "BlockConfig",
    "Kind",
    "Replacement",
    "Step",
    "Strict",
    "check_branch_count",
    "spread_places",
]

_SHOWN = 8
"""Of a list that is wrong, in a message."""

STEP_FORMS = ("<branch>", "<parallel>")
"""The two forms of a step, as they stand in the places of pydantic's errors."""


MOST_BRANCHES = 20_000
"""Of a model: the deepest that were published have a thousand layers of two, and each takes memory
and a millisecond before it has any weight."""


class Strict(BaseModel):
    """Base of every configuration schema: frozen, no unknown keys, no infinity and no NaN."""

    # Options of plugins are written as they are, so that who reads them can say what is wrong.
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )


class Kind(BaseModel):
    """A plugin by name with its options, flat: ``{"kind": "attention", "heads": 9}``."""

    model_config = ConfigDict(extra="allow", frozen=True)
    kind: str

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the kind, unchecked; :func:`~seqmix.config.build_config` checks it."""
        return dict(self.model_extra or {})


def _step_form(step: Any) -> str:
    return STEP_FORMS[isinstance(step, list | tuple)]


# Told apart by hand, so that an error speaks of the form that was written and not of both.
Step: TypeAlias = Annotated[
    Annotated[Kind, Tag(STEP_FORMS[0])]
    | Annotated[list[Kind], Field(min_length=1), Tag(STEP_FORMS[1])],
    Discriminator(_step_form),
]


class Replacement(Strict):
    """Another step, or another branch of a parallel step, in some layers of a block.

    ``count`` spreads that many replacements evenly (:func:`spread_places`); ``at`` names the layers
    of the block itself, from 0. Exactly one of the two says where.
    """

    step: NonNegativeInt = 0
    """Which of the block's steps is replaced, from 0."""
    branch: NonNegativeInt | None = None
    """Which branch of a parallel step alone, from 0; None for the whole step."""
    by: Step
    count: PositiveInt | None = None
    at: Annotated[list[NonNegativeInt], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _says_where_once(self) -> Self:
        if self.count is not None and self.at is not None:
            raise ValueError(
                f"count = {self.count} and at = {self.at} both say which layers; give one of them"
            )
        if self.count is None and self.at is None:
            raise ValueError(
                "says nothing of where: give 'count', to spread so many evenly, or 'at', a list "
                "of layers"
            )
        if self.branch is not None and isinstance(self.by, list):
            raise ValueError(
                f"branch = {self.branch} is replaced by {len(self.by)} branches; give one, or "
                "replace the whole step"
            )
        return self

    def layers(self, repeat: int) -> list[int]:
        """The layers that are replaced of a block of ``repeat``."""
        return spread_places(self.count or 0, repeat) if self.at is None else list(self.at)


class BlockConfig(Strict):
    """Residual steps in order, the whole list ``repeat`` times, some of them replaced.

    A step is one branch, or a list of branches that run in parallel on the same input. Two mixers
    in turn need no replacement: ``steps`` may hold the branches of several layers.
    """

    repeat: Annotated[PositiveInt, Field(le=MOST_BRANCHES)] = 1
    steps: list[Step] = Field(min_length=1)
    replace: list[Replacement] = []

    @model_validator(mode="after")
    def _replacements_fit(self) -> Self:
        _check_count(self.branch_count(), "block")
        taken: dict[tuple[int, int, int], int] = {}
        for i, replacement in enumerate(self.replace):
            where = f"replace.{i}: "
            _check_target(where, replacement, self.steps)
            _check_layers(where, replacement, self.repeat)
            for place in _places(replacement, self.repeat, self.steps):
                other = taken.setdefault(place, i)
                if other != i:
                    raise ValueError(
                        f"{where}replaces step {place[1]} of layer {place[0]}, as replace.{other} "
                        "does; say with 'at' which layers each of them takes"
                    )
        return self

    def branch_count(self) -> int:
        """The number of branches at most: those that are replaced count as well."""
        count = self.repeat * sum(_width_of(step) for step in self.steps)
        for replacement in self.replace:
            layers = replacement.count or len(replacement.at or ())
            count += layers * _width_of(replacement.by)
        return count

    def layers(self) -> list[list[list[Kind]]]:
        """Every layer as its steps, each as its list of parallel branches."""
        plain = [step if isinstance(step, list) else [step] for step in self.steps]
        made = [[list(step) for step in plain] for _ in range(self.repeat)]
        for replacement in self.replace:
            by, branch = replacement.by, replacement.branch
            for layer in replacement.layers(self.repeat):
                step = made[layer][replacement.step]
                if branch is None:
                    step[:] = by if isinstance(by, list) else [by]
                elif isinstance(by, Kind):
                    step[branch] = by
        return made


def spread_places(count: int, layers: int) -> list[int]:
    """``count`` of ``layers`` layers, from 0, each in the middle of an equal share of the depth.

    Share i of n begins at i / n of the depth: 1 of 2 is [1], 3 of 12 are [2, 6, 10], and half of
    the layers is every second one.
    """
    return [(2 * i + 1) * layers // (2 * count) for i in range(count)]


def check_branch_count(blocks: Sequence[BlockConfig]) -> None:
    """ValueError for more branches than :data:`MOST_BRANCHES`."""
    _check_count(sum(block.branch_count() for block in blocks), "model")


def _check_count(count: int, what: str) -> None:
    if count > MOST_BRANCHES:
        raise ValueError(f"a {what} has at most {MOST_BRANCHES} branches, this one has {count}")


def _width_of(step: Step) -> int:
    return len(step) if isinstance(step, list) else 1


def _check_target(where: str, replacement: Replacement, steps: list[Step]) -> None:
    """ValueError unless the block has the step, and the step the branch."""
    if replacement.step >= len(steps):
        raise ValueError(
            f"{where}step = {replacement.step}, but the block's steps are 0 to {len(steps) - 1}"
        )
    step, branch = steps[replacement.step], replacement.branch
    if branch is None:
        return
    size = _width_of(step)
    if branch >= size:
        raise ValueError(
            f"{where}branch = {branch}, but the branches of step {replacement.step} are 0 to "
            f"{size - 1}"
        )


def _check_layers(where: str, replacement: Replacement, repeat: int) -> None:
    """ValueError unless the block has as many layers, and those."""
    if replacement.count is not None and replacement.count > repeat:
        raise ValueError(
            f"{where}count = {replacement.count} is above repeat = {repeat}; replace at most "
            "every layer, or repeat the block more often"
        )
    at = replacement.at or []
    if wrong := [layer for layer in at if layer >= repeat]:
        raise ValueError(
            f"{where}at names {wrong[:_SHOWN]}, but the block's layers are 0 to {repeat - 1}"
        )
    if twice := sorted(layer for layer, times in Counter(at).items() if times > 1):
        raise ValueError(f"{where}at names {twice[:_SHOWN]} twice; name each layer once")


def _places(replacement: Replacement, repeat: int, steps: list[Step]) -> list[tuple[int, int, int]]:
    """Every (layer, step, branch) that is replaced."""
    step = steps[replacement.step]
    size = _width_of(step)
    branches = range(size) if replacement.branch is None else (replacement.branch,)
    return [
        (layer, replacement.step, branch)
        for layer in replacement.layers(repeat)
        for branch in branches
    ]
