"""Whether two modules compute the same function of their arguments and their weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["same_structure"]

_TABLES = ("_parameters", "_buffers", "_modules")
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def same_structure(one: nn.Module, other: nn.Module, apart: frozenset[str] = frozenset()) -> bool:
    """Whether the modules differ in nothing but the values of parameters and buffers.

    Classes, children, attributes, shapes and types are equal, and so is which of their weights are
    tied. A module with hooks, or with an attribute that cannot be compared, equals no other.
    Attributes of the modules themselves that are named ``apart`` do not count.
    """
    return _same_ties(one, other) and _same(one, other, apart)


def _same(one: nn.Module, other: nn.Module, apart: frozenset[str] = frozenset()) -> bool:
    if type(one) is not type(other) or _has_hooks(one) or _has_hooks(other):
        return False
    if set(vars(one)) != set(vars(other)):
        return False
    children = one._modules, other._modules
    return (
        all(_same_tensors(vars(one)[t], vars(other)[t]) for t in ("_parameters", "_buffers"))
        and _same_attributes(one, other, apart)
        and list(children[0]) == list(children[1])
        and all(_same_child(a, children[1][n]) for n, a in children[0].items())
    )


def _same_child(one: nn.Module | None, other: nn.Module | None) -> bool:
    if one is None or other is None:
        return one is other
    return _same(one, other)


def _has_hooks(module: nn.Module) -> bool:
    return any(getattr(module, name, None) for name in _HOOKS)


def _same_tensors(one: dict[str, Tensor | None], other: dict[str, Tensor | None]) -> bool:
    return list(one) == list(other) and all(_alike(t, other[n]) for n, t in one.items())


def _alike(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def _same_attributes(one: nn.Module, other: nn.Module, apart: frozenset[str]) -> bool:
    names = set(vars(one)).difference(_TABLES, _HOOKS, apart, {"training"})
    return all(_equal(vars(one)[name], vars(other)[name]) for name in names)


def _equal(one: Any, other: Any) -> bool:
    """Equality that is never in doubt: a comparison that fails counts as a difference."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return _alike(one, other) and bool(torch.equal(one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(_equal(v, other[k]) for k, v in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    try:
        return bool(one == other)
    except Exception:  # Whatever an attribute's comparison raises, it has not said "equal".
        return False


def _same_ties(one: nn.Module, other: nn.Module) -> bool:
    """Whether the same names share a tensor in both."""
    return _ties(one) == _ties(other)


def _ties(module: nn.Module) -> list[int]:
    """For every name of a weight, the number of the first name of the same tensor."""
    named = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    first: dict[int, int] = {}
    return [first.setdefault(id(tensor), i) for i, (_, tensor) in enumerate(named)]
