"""What a cell is: its code and all that it refers to, so that two calls of the same are told.

A cell is often a closure that is made anew in every call, around a module or a few tensors. Two
cells are the same if they have the same code and refer to equal things in the same places; tensors
among these may differ, they are found by their place.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Identity", "identify"]

_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device)
_FIXED = (type, types.ModuleType, types.BuiltinFunctionType, range, slice, type(...), np.ufunc)
"""What stays what it is: its address says enough."""
_OPAQUE = ("torch", "numpy", "math", "builtins", "functools", "typing")
"""Packages whose objects are told by their address."""
_FOREIGN = (*_OPAQUE, "seqmix", "seqmix_ir")
"""Packages whose functions are taken to stay what they are."""
_DEEPEST = 24
_LARGEST = 4096
"""Elements of a numpy array that is compared by value."""


@dataclass
class Identity:
    """A key that is equal for equal cells, and the tensors that a cell refers to, in order."""

    key: Hashable
    tensors: tuple[Tensor, ...]
    kept: tuple[Any, ...] = field(repr=False, default=())
    """Things that the key names by their address; they must live as long as the key does."""


def identify(cell: Any) -> Identity | None:
    """The identity of a cell; None where it refers to more than can be followed."""
    walk = _Walk()
    try:
        key = walk.of(cell, 0)
    except _UnknownError:
        return None
    return Identity(key, tuple(walk.tensors), tuple(walk.kept))


class _UnknownError(Exception):
    """Something that may change in ways that cannot be seen."""


class _Walk:
    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.kept: list[Any] = []
        self._places: dict[int, int] = {}
        self._seen: dict[int, int] = {}

    def of(self, thing: Any, depth: int) -> Hashable:
        """What stands for ``thing`` in a key."""
        if isinstance(thing, _PLAIN):
            # 1, 1.0 and True are equal, but not the same.
            return type(thing).__name__, thing
        if isinstance(thing, Tensor):
            return self._tensor(thing)
        if isinstance(thing, _FIXED):
            return self._by_address(thing)
        if depth > _DEEPEST:
            raise _UnknownError
        if (known := self._seen.get(id(thing))) is not None:
            return "again", known
        self._seen[id(thing)] = len(self._seen)
        return self._compound(thing, depth + 1)

    def _tensor(self, tensor: Tensor) -> Hashable:
        place = self._places.get(id(tensor))
        if place is None:
            place = self._places[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return "tensor", place

    def _by_address(self, thing: Any) -> Hashable:
        self.kept.append(thing)
        return type(thing).__name__, id(thing)

    def _every(self, things: Iterable[Any], depth: int) -> Hashable:
        return tuple(self.of(thing, depth) for thing in things)

    def _items(self, things: Mapping[Any, Any], depth: int) -> Hashable:
        return tuple((self.of(k, depth), self.of(v, depth)) for k, v in things.items())

    def _compound(self, thing: Any, depth: int) -> Hashable:
        kind = type(thing).__name__
        if isinstance(thing, tuple | list):
            return kind, self._every(thing, depth)
        if isinstance(thing, set | frozenset):
            return kind, frozenset(self.of(v, depth) for v in thing)
        if isinstance(thing, dict):
            return kind, self._items(thing, depth)
        if isinstance(thing, functools.partial):
            return kind, self._every((thing.func, thing.args, thing.keywords), depth)
        if isinstance(thing, types.MethodType):
            return kind, self._every((thing.__self__, thing.__func__), depth)
        if isinstance(thing, types.FunctionType):
            return self._function(thing, depth)
        if isinstance(thing, np.ndarray | np.generic):
            return self._array(np.asarray(thing))
        return self._object(thing, depth)

    def _function(self, thing: types.FunctionType, depth: int) -> Hashable:
        address = self._by_address(thing.__code__)
        if _is_foreign(thing.__module__):
            return address
        parts = (thing.__defaults__, thing.__kwdefaults__, *_closed_over(thing))
        return address, self._every(parts, depth), self._every(_globals_of(thing), depth)

    def _array(self, array: np.ndarray[Any, Any]) -> Hashable:
        if array.size > _LARGEST or array.dtype.hasobject:
            raise _UnknownError
        return "array", array.dtype.str, array.shape, array.tobytes()

    def _object(self, thing: Any, depth: int) -> Hashable:
        """An object is its class, with what that has of numbers and code, and what it has itself.

        So one that is made anew for every call is the same as long as it holds the same.
        """
        state = getattr(thing, "__dict__", None)
        if _is_foreign(type(thing).__module__, _OPAQUE) and not isinstance(thing, nn.Module):
            return self._by_address(thing)
        if not isinstance(state, dict):
            raise _UnknownError
        return self._class(type(thing), depth), self._items(state, depth)

    def _class(self, cls: type, depth: int) -> Hashable:
        if (known := self._seen.get(id(cls))) is not None:
            return "again", known
        self._seen[id(cls)] = len(self._seen)
        own = [base for base in cls.__mro__ if not _is_foreign(base.__module__)]
        parts = [part for base in own for part in _parts_of(base)]
        return self._by_address(cls), self._every(parts, depth)


def _is_foreign(module: str | None, packages: tuple[str, ...] = _FOREIGN) -> bool:
    return module is not None and module.partition(".")[0] in packages


def _parts_of(cls: type) -> Iterator[Any]:
    """Numbers and functions of a class, in the order of their definition."""
    for name, value in vars(cls).items():
        if isinstance(value, staticmethod | classmethod):
            yield value.__func__
        elif isinstance(value, property):
            yield value.fget
        elif isinstance(value, types.FunctionType) or _is_number(name, value):
            yield value


def _is_number(name: str, value: Any) -> bool:
    return isinstance(value, _PLAIN) and not name.startswith("__")


def _closed_over(function: types.FunctionType) -> Iterator[Any]:
    for place in function.__closure__ or ():
        try:
            yield place.cell_contents
        except ValueError:  # A name that is not bound yet.
            yield None


def _globals_of(function: types.FunctionType) -> Iterator[Any]:
    """The globals that the code and the functions inside of it name."""
    names: Mapping[str, Any] = function.__globals__
    for name in _names_of(function.__code__):
        if name in names:
            yield names[name]


def _names_of(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_of(constant)
