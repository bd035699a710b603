"""Models on disk: ``config.json`` and ``model.safetensors`` in one directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from seqmix.config import ModelConfig, read_config
from seqmix.errors import CheckpointError
from seqmix.inside import file_inside
from seqmix.reading import UnreadableError
from seqmix.safetensors_header import DTYPES, read_spans
from seqmix.weights import Weights, to_numpy
from seqmix.whole_file import whole_place, write_whole
from seqmix.whole_folder import Mark, mark_of, read_steadily, whole_folder

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
    "write_tensors",
]

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
LISTED = 20


def save_model(model: Model, directory: Path | str) -> None:
    """Write configuration and weights; the directory is made when it is not there.

    An earlier model there is replaced at once; other files of the directory stay. WriteError where
    it cannot be written: then all is as it was.
    """
    names = set(model.state_dict())
    weights = Weights.of(model)
    write_model(directory, model.config, weights.select(n for n in weights.names() if n in names))


def write_model(directory: Path | str, config: ModelConfig, weights: Weights) -> None:
    """Write a configuration and its weights as :func:`save_model` does, whole or not at all."""
    tensors = {name: weights.torch(name) for name in weights.names()}
    with whole_folder(directory, CONFIG_FILE) as folder:
        write_tensors(folder / WEIGHTS_FILE, tensors)
        write_whole(folder / CONFIG_FILE, config.to_json())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, whole or not at all; WriteError where that cannot be."""
    stored = _unshared({name: tensor.contiguous() for name, tensor in tensors.items()})
    with whole_place(path) as part:
        try:
            save_file(stored, part, metadata={"format": "pt"})
        except SafetensorError as error:  # What it makes of what the system says.
            raise OSError(str(error)) from error


def load_model(directory: Path | str) -> Model:
    """Read what :func:`save_model` wrote, all of it at one time."""

    def read() -> Model:
        config, weights = read_saved(directory)
        return model_from_weights(config, weights, None, str(directory))

    return read_steadily(Path(directory) / CONFIG_FILE, read)


def is_saved(directory: Path | str) -> bool:
    """Whether a directory looks like one that :func:`save_model` wrote."""
    folder = Path(directory)
    return (folder / CONFIG_FILE).is_file() and (folder / WEIGHTS_FILE).is_file()


def read_saved(directory: Path | str) -> tuple[ModelConfig, Weights]:
    """Configuration and lazy weights of a saved model.

    CheckpointError when a file is missing or a link out of the directory, when the file of weights
    is damaged, or when the configuration has more layers than there are tensors.
    """
    folder = Path(directory)
    config = read_config(_file(folder, CONFIG_FILE))
    weights = read_weights(_file(folder, WEIGHTS_FILE))
    if (layers := sum(block.repeat for block in config.blocks)) > len(weights):
        raise CheckpointError(
            f"{folder / CONFIG_FILE}: has {layers} repeated blocks, expected at most one for each "
            f"of the {len(weights)} tensors of {WEIGHTS_FILE}; they are of different models"
        )
    return config, weights


def read_weights(path: Path) -> Weights:
    """The tensors of a safetensors file, read on demand; CheckpointError when it is damaged."""
    mark = mark_of(path)
    spans = read_spans(path, DTYPES)
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path}: not a readable safetensors file: {error}; it may be truncated, write it again"
        ) from error
    return Weights({name: _FileTensor(path, name, spans[name].shape, mark) for name in names})


def model_from_weights(
    config: ModelConfig, weights: Weights, dtype: torch.dtype | None = None, source: str = "weights"
) -> Model:
    """A model whose weights are read one by one; CheckpointError lists all that do not fit.

    No memory is spent on fresh weights, and none on a model that does not fit. ``dtype`` replaces
    the one of the configuration.
    """
    from seqmix.dtypes import dtype_name
    from seqmix.model import Model

    if dtype is not None:
        config = config.model_copy(update={"dtype": dtype_name(dtype)})
    try:
        with torch.device("meta"):
            model = Model(config)
    except (RuntimeError, TypeError, OverflowError) as error:
        raise CheckpointError(
            f"{source}: no weights can have the sizes of model '{config.name}': "
            f"{str(error).splitlines()[0]}"
        ) from error
    _refuse_misfits(model, weights, source)
    _rebuild_computed(model, Model, config)
    wanted = model.state_dict()
    tensors = {name: weights.torch(name).to(target.dtype) for name, target in wanted.items()}
    model.load_state_dict(tensors, strict=True, assign=True)
    return model


class _FileTensor:
    """The loader of one tensor of a safetensors file, which must be the one it was at first."""

    def __init__(self, path: Path, name: str, shape: tuple[int, ...], mark: Mark) -> None:
        self._path = path
        self._name = name
        self._mark = mark
        self.shape = shape

    @property
    def identity(self) -> str:
        """Changes when the file does."""
        stat = self._path.stat()
        return f"{self._path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}:{self._name}"

    def __call__(self) -> NDArray[Any]:
        try:
            with safe_open(self._path, framework="pt") as file:
                tensor = to_numpy(file.get_tensor(self._name))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{self._path}: tensor '{self._name}' cannot be read: {error}; write it again"
            ) from error
        if mark_of(self._path) != self._mark:
            raise CheckpointError(
                f"{self._path}: was replaced since it was opened, and tensors of two models would "
                "be mixed; load the model again"
            )
        return tensor


def _file(folder: Path, name: str) -> Path:
    try:
        path = file_inside(folder, name)
    except UnreadableError as error:
        raise CheckpointError(f"{folder / name}: {error}") from error
    if not path.is_file():
        raise CheckpointError(f"{folder}: has no {name}; expected a saved seqmix model")
    return path


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors that are views of one memory: the file format refuses those."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        shared = tensor.untyped_storage().data_ptr() in seen
        seen.add(tensor.untyped_storage().data_ptr())
        result[name] = tensor.clone() if shared else tensor
    return result


def _refuse_misfits(model: nn.Module, weights: Weights, source: str) -> None:
    """CheckpointError for all that is missing, misshapen or not expected; reads no tensor."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    known = wanted.keys() | {name for name, _ in model.named_buffers()}
    problems = [f"missing '{n}' {list(shape)}" for n, shape in wanted.items() if n not in weights]
    problems += [f"unexpected '{name[:200]}'" for name in weights.names() if name not in known]
    for name, shape in wanted.items():
        if name in weights and (found := weights.shape(name)) != shape:
            problems.append(f"'{name}' should be {list(shape)}, found {list(found)}")
    if problems:
        more = f"; and {len(problems) - LISTED} more" if len(problems) > LISTED else ""
        raise CheckpointError(
            f"{source}: weights do not fit the model: {'; '.join(problems[:LISTED])}{more}"
        )


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
