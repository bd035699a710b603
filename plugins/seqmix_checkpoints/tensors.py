"""Foreign tensors under our names: lazy loaders, and the checks that need no tensor data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqmix.errors import CheckpointError, did_you_mean
from seqmix.weights import Weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FileTensor", "read_bytes", "renamed"]

LISTED, SHOWN = 6, 200
NEAR = 500
"""Names among which near ones are looked for, which takes a tenth of a millisecond each."""


class FileTensor:
    """The loader of one tensor: its place in a file, and how bytes become an array."""

    def __init__(
        self,
        path: Path,
        name: str,
        shape: tuple[int, ...],
        load: Callable[[], NDArray[Any]],
        change: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
    ) -> None:
        """``change`` is applied after ``load``; both run at each access."""
        self.path = path
        self.name = name
        self.shape = shape
        self._load = load
        self._change = change

    @property
    def identity(self) -> str:
        """Changes when the file does, or when the array is changed on the way."""
        stat = self.path.stat()
        how = getattr(self._change, "__name__", "") if self._change else ""
        return f"{self.path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}:{self.name}:{how}"

    def changed(
        self,
        change: Callable[[NDArray[Any]], NDArray[Any]],
        shape: tuple[int, ...] | None = None,
    ) -> FileTensor:
        """The same tensor with a change on the way, which makes it ``shape`` when that is given.

        The name of the function is part of the identity.
        """
        return FileTensor(self.path, self.name, shape or self.shape, self._load, change)

    def __call__(self) -> NDArray[Any]:
        array = self._load()
        return array if self._change is None else self._change(array)


def read_bytes(path: Path, name: str, start: int, count: int) -> NDArray[np.uint8]:
    """``count`` bytes of a file; CheckpointError when it has become shorter."""
    try:
        data = np.fromfile(path, dtype=np.uint8, count=count, offset=start)
    except OSError as error:
        raise CheckpointError(f"{path}: tensor '{name}' cannot be read: {error}") from error
    if data.size != count:
        raise CheckpointError(
            f"{path}: tensor '{name}' should have {count} bytes at {start}, found {data.size}; "
            "the file is truncated, fetch it again"
        )
    return data


def renamed(
    where: Path,
    tensors: Mapping[str, FileTensor],
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    ignored: Callable[[str], bool],
) -> Weights:
    """``tensors`` under our names; CheckpointError for missing, unknown and misshapen ones."""
    wanted = {ours: names[ours] for ours in shapes}
    missing = [ours for ours, theirs in wanted.items() if theirs not in tensors]
    near = list(islice(tensors, NEAR))
    problems = [
        f"tensor '{wanted[ours]}' {list(shapes[ours])} is missing"
        f"{did_you_mean(wanted[ours], near) if at < LISTED else ''}"
        for at, ours in enumerate(missing)
    ]
    known = set(wanted.values())
    problems += [
        f"tensor '{name[:SHOWN]}' {list(tensor.shape)} is not expected"
        for name, tensor in tensors.items()
        if name not in known and not ignored(name)
    ]
    problems += [
        f"tensor '{theirs}' should be {list(shapes[ours])}, found {list(tensors[theirs].shape)}"
        for ours, theirs in wanted.items()
        if theirs in tensors and tensors[theirs].shape != shapes[ours]
    ]
    if problems:
        more = f"; and {len(problems) - LISTED} more" if len(problems) > LISTED else ""
        raise CheckpointError(
            f"{where}: {'; '.join(problems[:LISTED])}{more}; the weights should be those of the "
            "configuration next to them, fetch both again"
        )
    return Weights({ours: tensors[theirs] for ours, theirs in wanted.items()})
