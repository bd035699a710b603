"""Models on disk: ``config.json`` and ``model.safetensors`` in one directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from seqmix.config import ModelConfig, read_config
from seqmix.errors import CheckpointError
from seqmix.weights import Weights, to_numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqmix.model import Model

__all__ = [
    "CONFIG_FILE",
    "WEIGHTS_FILE",
    "is_saved",
    "load_model",
    "model_from_weights",
    "read_saved",
    "read_weights",
    "save_model",
    "write_model",
]

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


def save_model(model: Model, directory: Path | str) -> None:
    """Write configuration and weights; the directory is made when it is not there."""
    names = set(model.state_dict())
    weights = Weights.of(model)
    write_model(directory, model.config, weights.select(n for n in weights.names() if n in names))


def write_model(directory: Path | str, config: ModelConfig, weights: Weights) -> None:
    """Write a configuration and its weights; each file appears whole or not at all."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: weights.torch(name).contiguous() for name in weights.names()}
    part = folder / f".{WEIGHTS_FILE}.{os.getpid()}"
    try:
        save_file(_unshared(tensors), part, metadata={"format": "pt"})
        part.replace(folder / WEIGHTS_FILE)
        part.write_text(config.to_json(), encoding="utf-8")
        part.replace(folder / CONFIG_FILE)
    finally:
        part.unlink(missing_ok=True)


def load_model(directory: Path | str) -> Model:
    """Read what :func:`save_model` wrote."""
    config, weights = read_saved(directory)
    return model_from_weights(config, weights, None, str(directory))


def is_saved(directory: Path | str) -> bool:
    """Whether a directory looks like one that :func:`save_model` wrote."""
    folder = Path(directory)
    return (folder / CONFIG_FILE).is_file() and (folder / WEIGHTS_FILE).is_file()


def read_saved(directory: Path | str) -> tuple[ModelConfig, Weights]:
    """Configuration and lazy weights of a saved model; CheckpointError when a file is missing."""
    folder = Path(directory)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder}: has no {name}; expected a saved seqmix model")
    return read_config(folder / CONFIG_FILE), read_weights(folder / WEIGHTS_FILE)


def read_weights(path: Path) -> Weights:
    """The tensors of a safetensors file, read on demand."""
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path}: not a readable safetensors file: {error}; it may be truncated, write it again"
        ) from error
    return Weights({name: _FileTensor(path, name) for name in names})


def model_from_weights(
    config: ModelConfig, weights: Weights, dtype: torch.dtype | None = None, source: str = "weights"
) -> Model:
    """A model whose weights are read one by one; CheckpointError lists all that do not fit.

    No memory is spent on fresh weights. ``dtype`` replaces the one of the configuration.
    """
    from seqmix.dtypes import dtype_name
    from seqmix.model import Model

    if dtype is not None:
        config = config.model_copy(update={"dtype": dtype_name(dtype)})
    with torch.device("meta"):
        model = Model(config)
    _rebuild_computed(model, Model, config)
    tensors = _matching(model, weights, source)
    model.load_state_dict(tensors, strict=True, assign=True)
    return model


class _FileTensor:
    """The loader of one tensor of a safetensors file."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name

    @property
    def identity(self) -> str:
        """Changes when the file does."""
        stat = self._path.stat()
        return f"{self._path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}:{self._name}"

    def __call__(self) -> NDArray[Any]:
        with safe_open(self._path, framework="pt") as file:
            return to_numpy(file.get_tensor(self._name))


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors that are views of one memory: the file format refuses those."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        shared = tensor.untyped_storage().data_ptr() in seen
        seen.add(tensor.untyped_storage().data_ptr())
        result[name] = tensor.clone() if shared else tensor
    return result


def _matching(model: nn.Module, weights: Weights, source: str) -> dict[str, Tensor]:
    """Every tensor that the model stores, in its dtype; one error for all that do not fit."""
    wanted = model.state_dict()
    computed = {name for name, _ in model.named_buffers()} - set(wanted)
    problems = [f"missing '{n}' {list(t.shape)}" for n, t in wanted.items() if n not in weights]
    problems += [f"unexpected '{n}'" for n in weights.names() if n not in {*wanted, *computed}]
    tensors = {}
    for name, target in wanted.items():
        if name not in weights:
            continue
        tensor = weights.torch(name)
        if tensor.shape != target.shape:
            problems.append(f"'{name}' should be {list(target.shape)}, found {list(tensor.shape)}")
        tensors[name] = tensor.to(target.dtype)
    if problems:
        raise CheckpointError(f"{source}: weights do not fit the model: " + "; ".join(problems))
    return tensors


def _rebuild_computed(model: Model, build: Any, config: ModelConfig) -> None:
    """Give memory to buffers that are computed, not stored, where a mixer has some.

    They were made on the meta device, where nothing is computed; the rare model that has them is
    built once more for real, and they are taken from there.
    """
    stored = set(model.state_dict())
    lost = [n for n, b in model.named_buffers() if n not in stored and b.is_meta]
    if not lost:
        return
    buffers: Mapping[str, Tensor] = dict(build(config).named_buffers())
    for name in lost:
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, buffers[name])
