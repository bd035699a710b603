"""Log probabilities of the targets of windows, on disk, so that a stopped run goes on.

A file of scores is a float32 ``.npy`` ``[N, S]`` in nats, with a ``.json`` of the same name beside
it, ``{"windows": fingerprint, "model": name}``. Any runtime can write one: ``windows`` is
:attr:`~seqmix_recall.gap_windows.Windows.fingerprint`, which the JSON report of a run on the same
windows has. NaN stands where nothing was scored yet, and behind the end of a short window.

Sizes: N windows, B windows of a batch, S targets, C tokens of a chunk, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqmix.errors import ConfigError, SeqmixError
from seqmix.model import Model, flatten_states, initial_states, unflatten_states
from seqmix.reading import UnreadableError, read_json
from seqmix.whole_file import whole_file, write_whole
from seqmix_recall.gap_windows import Windows

if TYPE_CHECKING:
    from seqmix.generate import Runner

__all__ = ["ScoreFile", "score_rows", "score_windows"]

Floats: TypeAlias = NDArray[np.float32]

LOGIT_BYTES = 1 << 28
"""What the logits of one chunk may take, where no chunk is asked for."""


@dataclass(frozen=True)
class ScoreFile:
    """Scores on disk, mapped: ``values [N, S]`` of the model ``name``."""

    path: Path
    name: str
    values: Floats

    @staticmethod
    def open(path: Path, windows: Windows, writable: bool = False) -> ScoreFile:
        """Scores of these windows; ConfigError for those of others, and for any other file."""
        about = _about(path)
        try:
            values = np.load(path, mmap_mode="r+" if writable else "r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ConfigError(f"{path}: is no file of log probabilities: {error}") from error
        shape = (len(windows), windows.length)
        if values.shape != shape or values.dtype != np.float32:
            raise ConfigError(
                f"{path}: log probabilities should be float32 {list(shape)}, found "
                f"{values.dtype} {list(values.shape)}"
            )
        if about.get("windows") != windows.fingerprint:
            raise ConfigError(
                f"{path}: is of other windows, expected {windows.fingerprint[:16]}, found "
                f"{str(about.get('windows'))[:16]}; score the same tokens at the same length"
            )
        return ScoreFile(path, str(about.get("model", path.stem)), values)

    @staticmethod
    def create(path: Path, name: str, identity: str, windows: Windows) -> ScoreFile:
        """Go on with a file that ``identity``, a digest of the weights, began; or start anew."""
        about = {"windows": windows.fingerprint, "model": name, "identity": identity}
        if path.is_file() and _about(path, strict=False) == about:
            return ScoreFile.open(path, windows, writable=True)
        # The old scores go first: they must never stand beside a description that is not theirs.
        path.unlink(missing_ok=True)
        write_whole(path.with_suffix(".json"), json.dumps(about) + "\n")
        with whole_file(path) as file:
            _write_empty(file, len(windows), windows.length)
        return ScoreFile.open(path, windows, writable=True)

    def missing(self, windows: Windows, at_once: int = 4096) -> NDArray[np.int64]:
        """The numbers of the windows that are not wholly scored, in order."""
        found = []
        for start in range(0, len(windows), at_once):
            values = np.asarray(self.values[start : start + at_once])
            sizes = windows.sizes[start : start + at_once]
            scored = (~np.isnan(values) & (np.arange(windows.length) < sizes[:, None])).sum(1)
            found.append(start + np.flatnonzero(scored < sizes))
        return np.concatenate(found) if found else np.zeros(0, np.int64)


def score_windows(
    runner: Runner,
    windows: Windows,
    scores: ScoreFile,
    *,
    batch: int = 8,
    chunk: int | None = None,
    watch: Callable[[int], None] | None = None,
) -> None:
    """Score what is missing, ``batch`` windows at a time, each from an empty state.

    ``chunk`` tokens are read at a time, the state carried on, so that neither logits nor
    activations grow with the window; by default as many as keep the logits within 256 MiB, and all
    of them with a position encoding that has one scale for a whole call.
    ``watch`` gets the number of windows that were scored. SeqmixError where logits are not finite.
    """
    if batch < 1 or (chunk is not None and chunk < 1):
        raise ConfigError(f"batch and chunk should be at least 1, found {batch} and {chunk}")
    size = _chunk_size(runner, windows.length, batch, chunk)
    for group in _runs(scores.missing(windows), batch):
        first, last = int(group[0]), int(group[-1]) + 1
        tokens, valid = windows.take(first, last)
        values = score_rows(runner, torch.from_numpy(tokens), torch.from_numpy(valid), size)
        found = values.cpu().numpy()
        if not np.isfinite(found[valid]).all():
            bad = first + int(np.flatnonzero((~np.isfinite(found) & valid).any(1))[0])
            raise SeqmixError(
                f"model '{runner.config.name}', window {bad}: a log probability is not finite; "
                "check the weights, or use a wider dtype"
            )
        scores.values[first:last, : found.shape[1]] = np.where(valid, found, np.nan)
        if watch is not None:
            watch(len(group))


def _chunk_size(runner: Runner, length: int, batch: int, chunk: int | None) -> int:
    """The tokens that are read at a time; ConfigError where pieces would give other logits."""
    if not _splits(runner):
        if chunk is not None and chunk < length:
            raise ConfigError(
                f"model '{runner.config.name}': its position encoding has one scale for all that "
                f"is read at once, so that chunk = {chunk} changes what a window of {length} "
                "gives; leave it out"
            )
        return length
    return chunk or max(1, LOGIT_BYTES // (4 * batch * runner.config.vocab_size))


def _splits(runner: Runner) -> bool:
    """Whether reading in pieces is the same as at once."""
    if runner.config.position is None:
        return True
    with torch.device("meta"):
        position = Model(runner.config).position
    return position is None or position.splits


@torch.inference_mode()
def score_rows(runner: Runner, tokens: Tensor, valid: Tensor, chunk: int) -> Tensor:
    """Float32 log probabilities ``[B, S]`` of the targets of int64 ``tokens [B, S + 1]``.

    ``valid [B, S]`` is False behind the end of a row, where the result means nothing.
    """
    batch, length = valid.shape
    places = torch.arange(length).expand(batch, -1)
    positions = torch.where(valid, places, -1)
    states = _fresh(runner, batch)
    pieces = []
    for start in range(0, length, chunk):
        part = slice(start, start + chunk)
        logits, states = _read(runner, tokens[:, :-1][:, part], positions[:, part], states)
        wide = logits.float()
        asked = tokens[:, 1:][:, part].to(wide.device)
        picked = wide.gather(-1, asked.unsqueeze(-1)).squeeze(-1)
        pieces.append(picked - wide.logsumexp(-1))
    return torch.cat(pieces, 1)


def _read(
    runner: Runner, ids: Tensor, positions: Tensor, states: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    ids, positions = ids.contiguous(), positions.contiguous()
    if not isinstance(runner, Model):
        return runner(ids, positions, states)
    device = runner.embed.weight.device
    logits, after = runner(ids.to(device), positions.to(device), unflatten_states(runner, states))
    return logits, flatten_states(runner, after)


def _fresh(runner: Runner, batch: int) -> dict[str, Tensor]:
    if isinstance(runner, Model):
        return initial_states(runner, batch)
    return runner.initial_state(batch)


def _runs(numbers: NDArray[np.int64], batch: int) -> list[NDArray[np.int64]]:
    """Neighbouring numbers, at most ``batch`` together."""
    gaps = np.flatnonzero(np.diff(numbers) != 1) + 1
    runs = np.split(numbers, gaps) if len(numbers) else []
    return [run[i : i + batch] for run in runs for i in range(0, len(run), batch)]


def _write_empty(file: BinaryIO, rows: int, length: int) -> None:
    """A ``.npy`` of NaN, row by row."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, length)}
    np.lib.format.write_array_header_1_0(file, header)
    row = np.full(length, np.nan, "<f4").tobytes()
    for _ in range(rows):
        file.write(row)


def _about(path: Path, strict: bool = True) -> dict[str, Any]:
    try:
        data = read_json(path.with_suffix(".json"))
    except UnreadableError as error:
        if not strict:
            return {}
        raise ConfigError(
            f"{path.with_suffix('.json')}: should say what {path.name} is of: {error}"
        ) from error
    return data if isinstance(data, dict) else {}
