"""Foreign names and layouts of weights as rows of a table, and the reading of such a table.

Sizes: H heads, K size of a head, D channels, W taps of a convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seqmix.config import ModelConfig
from seqmix.errors import CheckpointError, ConfigError, did_you_mean
from seqmix.weights import Weights, to_numpy
from seqmix_xlstm.stored import Shape, Stored

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "RECURRENT_CUDA",
    "RECURRENT_VANILLA",
    "RESIDUAL",
    "SAME",
    "TAPS",
    "Change",
    "Row",
    "bias_by_gate",
    "bias_by_head",
    "expected_shapes",
    "piece",
    "weights_of",
]

LISTED, SHOWN = 6, 200
NEAR = 500
"""Names among which near ones are looked for, which takes a tenth of a millisecond each."""


@dataclass(frozen=True)
class Change:
    """How a stored tensor becomes ours.

    ``stored`` gives the shape there of a shape here, ``read`` the tensor here of one there. The
    name is part of the identity of what is read.
    """

    name: str
    stored: Callable[[Shape], Shape]
    read: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    """One of our weights and where it comes from; ``theirs`` of None stands for ones."""

    ours: str
    theirs: str | None
    change: Change

    def at(self, ours: str, theirs: str) -> Row:
        """The same row behind prefixes."""
        return replace(
            self,
            ours=ours + self.ours,
            theirs=None if self.theirs is None else theirs + self.theirs,
        )


def _same(shape: Shape) -> Shape:
    return shape


SAME = Change("", _same, lambda w: w)
RESIDUAL = Change("residual", _same, lambda w: 1 + w)
"""Norms that multiply by ``1 + weight``."""
TAPS = Change("taps", lambda s: (s[0], 1, s[1]), lambda w: w.squeeze(1))
"""``[D, 1, W]`` of a convolution by groups to ``[D, W]``."""
RECURRENT_VANILLA = Change(
    "recurrent_vanilla",
    lambda s: (s[0], 4 * s[1], s[1]),
    lambda w: w.reshape(w.shape[0], 4, w.shape[2], w.shape[2]).permute(0, 3, 1, 2),
)
"""``[H, 4 K (out), K (in)]`` to ``[H, K (in), 4, K (out)]``."""
RECURRENT_CUDA = Change(
    "recurrent_cuda",
    lambda s: (s[0], s[1], 4 * s[1]),
    lambda w: w.reshape(w.shape[0], w.shape[1], 4, w.shape[1]),
)
"""``[H, K (in), 4 K (out)]`` to ``[H, K (in), 4, K (out)]``."""


def _flat(shape: Shape) -> Shape:
    return (shape[0] * shape[1] * shape[2],)


def bias_by_gate(heads: int) -> Change:
    """``[4 H K]``, gate by gate, to ``[H, 4, K]``."""
    return Change(f"bias_by_gate_{heads}", _flat, lambda w: w.reshape(4, heads, -1).transpose(0, 1))


def bias_by_head(heads: int) -> Change:
    """``[H 4 K]``, head by head, to ``[H, 4, K]``."""
    return Change(f"bias_by_head_{heads}", _flat, lambda w: w.reshape(heads, 4, -1))


def piece(start: int, stop: int, whole: int) -> Change:
    """Rows of a tensor that has several of ours in one, ``whole`` rows in all."""
    return Change(f"rows_{start}_{stop}", lambda s: (whole, *s[1:]), lambda w: w[start:stop])


class Piece:
    """The loader of one of our weights: a stored tensor, and the change on the way."""

    def __init__(self, stored: Stored, change: Change, shape: Shape) -> None:
        """Nothing is read before the call; ``shape`` is that of the weight."""
        self.shape = shape
        self._stored = stored
        self._change = change

    @property
    def identity(self) -> str:
        """Changes when the file does; empty for a tensor in memory."""
        known = self._stored.identity
        return f"{known}:{self._change.name}" if known else ""

    def __call__(self) -> NDArray[Any]:
        return to_numpy(self._change.read(self._stored.load()).contiguous())


class Ones:
    """The loader of a norm's weight that the other side does not have."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    @property
    def identity(self) -> str:
        """Ones of a shape are the same everywhere."""
        return f"ones:{self.shape}"

    def __call__(self) -> NDArray[Any]:
        return to_numpy(torch.ones(self.shape))


def expected_shapes(config: ModelConfig, where: str) -> dict[str, Shape]:
    """The shape of every weight that a model of a configuration has; takes no memory."""
    from seqmix.model import Model

    try:
        with torch.device("meta"):
            model = Model(config)
    except (ConfigError, RuntimeError, TypeError, OverflowError) as error:
        raise CheckpointError(
            f"{where}: no weights can have these sizes: {str(error).splitlines()[0]}"
        ) from error
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def weights_of(
    where: str,
    tensors: Mapping[str, Stored],
    rows: Sequence[Row],
    shapes: Mapping[str, Shape],
    ignored: Collection[str] = (),
) -> Weights:
    """The weights with ``shapes``, in that order; rows of others are not asked for.

    CheckpointError lists tensors that are missing, misshapen or neither read nor ``ignored``.
    """
    wanted = {row.ours: row for row in rows if row.ours in shapes}
    stored = {
        row.theirs: row.change.stored(shapes[row.ours])
        for row in wanted.values()
        if row.theirs is not None
    }
    problems = _problems(stored, tensors, ignored)
    if problems:
        more = f"; and {len(problems) - LISTED} more" if len(problems) > LISTED else ""
        raise CheckpointError(
            f"{where}: {'; '.join(problems[:LISTED])}{more}; the weights should be those of the "
            "configuration next to them"
        )
    return Weights({ours: _load(wanted[ours], tensors, shapes[ours]) for ours in shapes})


def _problems(
    stored: Mapping[str, Shape], tensors: Mapping[str, Stored], ignored: Collection[str]
) -> list[str]:
    """What of ``stored``, shapes by name, the tensors do not have, and what they have besides."""
    missing = [name for name in stored if name not in tensors]
    near = list(islice(tensors, NEAR))
    problems = [
        f"tensor '{name}' {list(stored[name])} is missing"
        f"{did_you_mean(name, near) if at < LISTED else ''}"
        for at, name in enumerate(missing)
    ]
    problems += [
        f"tensor '{name[:SHOWN]}' {list(tensor.shape)} is not expected"
        for name, tensor in tensors.items()
        if name not in stored and name not in ignored
    ]
    problems += [
        f"tensor '{name}' should be {list(shape)}, found {list(tensors[name].shape)}"
        for name, shape in stored.items()
        if name in tensors and tensors[name].shape != shape
    ]
    return problems


def _load(row: Row, tensors: Mapping[str, Stored], shape: Shape) -> Piece | Ones:
    if row.theirs is None:
        return Ones(shape)
    return Piece(tensors[row.theirs], row.change, shape)
