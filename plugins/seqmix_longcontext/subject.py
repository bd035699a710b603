"""The model under evaluation: read once, and run with every encoding that is asked for."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import torch

from seqmix.checkpoint import Checkpoint, Tokenizer, resolve
from seqmix.compile import compile
from seqmix.dtypes import dtype_name, torch_dtype
from seqmix.errors import CheckpointError, ConfigError
from seqmix.model import Model
from seqmix.weights import Weights
from seqmix_longcontext.methods import Method

if TYPE_CHECKING:
    from seqmix.backend import Executable

__all__ = ["Runner", "Subject"]

Runner: TypeAlias = "Model | Executable"


@dataclass(frozen=True)
class Subject:
    """A checkpoint with the backend, the element type and the torch device that it is run on.

    ``weights`` is a smaller type for its matrices, an option of backends that have it.
    """

    checkpoint: Checkpoint
    backend: str = "torch"
    dtype: str | None = None
    device: str = "cpu"
    weights: str | None = None

    @staticmethod
    def read(
        source: str,
        backend: str = "torch",
        dtype: str | None = None,
        device: str = "cpu",
        weights: str | None = None,
    ) -> Subject:
        """The subject of a path or a name; CheckpointError or ConfigError for one that is none."""
        _check_device(device)
        if dtype is not None:
            torch_dtype(dtype)
        if weights is not None and backend == "torch":
            raise ConfigError(
                f"weights in {weights} need a backend that has them, found 'torch'; choose one "
                "with --backend, such as onnxruntime"
            )
        return Subject(resolve(source), backend, dtype, device, weights)

    @staticmethod
    def of(model: Model, tokenizer: Tokenizer | None = None) -> Subject:
        """A model in memory."""
        checkpoint = Checkpoint(model.config, Weights.of(model), tokenizer, source="the model")
        device = str(model.embed.weight.device)
        return Subject(checkpoint, dtype=dtype_name(model.dtype), device=device)

    @property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's; CheckpointError where it brings none."""
        if self.checkpoint.tokenizer is None:
            raise CheckpointError(
                f"{self.checkpoint.source}: has no tokenizer, so it cannot read text; choose a "
                "checkpoint that brings one"
            )
        return self.checkpoint.tokenizer

    @cached_property
    def model(self) -> Model:
        """The torch model with its own encoding, for inference."""
        dtype = None if self.dtype is None else torch_dtype(self.dtype)
        model = Model.from_checkpoint(self.checkpoint, dtype).eval().requires_grad_(False)
        return model.to(self.device)

    @cached_property
    def identity(self) -> str:
        """Changes with the weights, their type, and what runs them."""
        smaller = "" if self.weights is None else f" {self.weights}"
        digest = self.checkpoint.weights.digest()
        return f"{digest} {self.dtype} {self.backend} {self.device}{smaller}"

    def runner(self, method: Method, logits_to_keep: int = 0) -> Runner:
        """The model with an encoding, on the backend; BackendError where it cannot be run."""
        gc.collect()  # The last one goes before the next one comes.
        model = method.apply(self.model)
        if self.backend == "torch":
            return model
        options = {} if self.weights is None else {"weights": self.weights}
        return compile(model, self.backend, options=options, logits_to_keep=logits_to_keep)


def _check_device(name: str) -> None:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"'{name}' is no torch device; take cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device '{name}' is not there: torch sees no CUDA device; take cpu")
