"""Weights by name: lazy, so that a backend holds one tensor at a time, and with a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seqmix.errors import CheckpointError, did_you_mean

if TYPE_CHECKING:
    from typing import TypeAlias

__all__ = ["Loader", "Weights", "to_numpy", "to_torch"]

Loader: TypeAlias = "Callable[[], NDArray[Any]]"


class Weights:
    """A lazy mapping from names to arrays; bf16 is the dtype of ``ml_dtypes``.

    A loader is called at each access and may have an attribute ``identity``, a string that changes
    whenever the bytes may have changed (path, size and time of a file, name of the tensor). When
    all loaders have one, the digest is read from the cache instead of from the bytes. An attribute
    ``shape`` saves reading a tensor for its shape alone.
    """

    def __init__(self, loaders: Mapping[str, Loader] | Callable[[], Mapping[str, Loader]]) -> None:
        """Weights that ``loaders`` read on demand; a function is asked for them at first use."""
        self._given = loaders
        self._digest: str | None = None

    @cached_property
    def _loaders(self) -> dict[str, Loader]:
        return dict(self._given() if callable(self._given) else self._given)

    @staticmethod
    def of(model: nn.Module) -> Weights:
        """The parameters and buffers of a model, tied ones once; views, where they lie on a CPU.

        They follow later changes of the model, so their digest is computed anew at each call.
        """
        return Weights.of_tensors(_tensors_of(model))

    @staticmethod
    def of_tensors(tensors: Mapping[str, Tensor]) -> Weights:
        """Tensors in memory by name; see :meth:`of`."""
        return _LiveWeights(_held(tensors))

    @staticmethod
    def of_later(make: Callable[[], nn.Module]) -> Weights:
        """Those of a model that is made when the first of them is asked for; see :meth:`of`."""
        return _LiveWeights(lambda: _held(_tensors_of(make())))

    def names(self) -> list[str]:
        """Every name, in the order of the source."""
        return list(self._loaders)

    def numpy(self, name: str) -> NDArray[Any]:
        """The array called ``name``; CheckpointError with near names when there is none."""
        if name not in self._loaders:
            raise CheckpointError(
                f"no weight is called '{name}'{did_you_mean(name, self._loaders)}; "
                f"there are {len(self._loaders)} others"
            )
        return self._loaders[name]()

    def torch(self, name: str) -> Tensor:
        """The tensor called ``name``; it shares memory with the array where that is writable."""
        return to_torch(self.numpy(name))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the array called ``name``; nothing is read where its loader knows it."""
        known = getattr(self._loaders.get(name), "shape", None)
        return tuple(self.numpy(name).shape if known is None else known)

    def select(self, names: Iterable[str]) -> Weights:
        """Some of the weights; CheckpointError when one is not there."""
        wanted = list(names)
        missing = [name for name in wanted if name not in self._loaders]
        if missing:
            raise CheckpointError(f"weights are missing: {', '.join(missing)}")
        return type(self)({name: self._loaders[name] for name in wanted})

    def digest(self) -> str:
        """The sha256 over names, dtypes, shapes and bytes, as hexadecimal digits."""
        if self._digest is None:
            self._digest = self._cached_digest() or self._content_digest()
        return self._digest

    def _cached_digest(self) -> str | None:
        from seqmix import cache

        identities = [getattr(loader, "identity", None) for loader in self._loaders.values()]
        if not identities or not all(identities):
            return None
        text = "\n".join(f"{n}={i}" for n, i in zip(self._loaders, identities, strict=True))
        return cache.remember("digest", text, self._content_digest)

    def _content_digest(self) -> str:
        total = hashlib.sha256()
        for name in sorted(self._loaders):
            array = np.ascontiguousarray(self.numpy(name))
            total.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
            total.update(array.reshape(-1).view(np.uint8).data)
        return total.hexdigest()

    def __len__(self) -> int:
        return len(self._loaders)

    def __contains__(self, name: object) -> bool:
        return name in self._loaders


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    return dict([*model.named_parameters(), *model.named_buffers()])


def _held(tensors: Mapping[str, Tensor]) -> dict[str, Loader]:
    return {name: _Held(tensor) for name, tensor in tensors.items()}


class _LiveWeights(Weights):
    """Weights that may change between two digests."""

    def digest(self) -> str:
        return self._content_digest()


class _Held:
    """The loader of a tensor that is in memory already."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.shape = tuple(tensor.shape)

    def __call__(self) -> NDArray[Any]:
        return to_numpy(self.tensor)


def to_numpy(tensor: Tensor) -> NDArray[Any]:
    """A tensor as an array, without a copy where it lies on a CPU."""
    tensor = tensor.detach().cpu()
    if tensor.dtype != torch.bfloat16:
        array: NDArray[Any] = tensor.numpy()
        return array
    return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def to_torch(array: NDArray[Any]) -> Tensor:
    """An array as a tensor, without a copy where it is writable and contiguous."""
    array = np.require(array, requirements=["C", "W"])
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
