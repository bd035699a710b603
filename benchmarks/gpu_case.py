"""One thing that gpu.py measures, and how it is compared with float64."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

__all__ = ["Case", "Function", "as_leaves", "differentiated", "distance", "importable"]

Function: TypeAlias = "Callable[..., Any]"


@dataclass
class Case:
    """One call: ``flops`` and ``bytes`` are the least that its forward pass needs.

    What only serves has no backward pass: ``trains`` is False. It may give several results.
    """

    name: str
    operands: tuple[Tensor, ...]
    ours: Function
    plain: Function
    peers: dict[str, Function]
    flops: float = 0.0
    trains: bool = True
    bytes: float = field(init=False)

    def __post_init__(self) -> None:
        moved = [*self.operands, *_results(self.ours(*self.operands))]
        self.bytes = float(sum(t.numel() * t.element_size() for t in moved))

    @property
    def dtype(self) -> str:
        """Of the operands."""
        return str(self.operands[0].dtype).removeprefix("torch.")

    def error(self, run: Function) -> float:
        """The largest of result and gradients, relative to the largest entry of each."""
        compute = differentiated if self.trains else _computed
        found = compute(run, self.operands)
        wide = tuple(t.double() if t.is_floating_point() else t for t in self.operands)
        truth = compute(self.plain, wide)
        return max(distance(a, b) for a, b in zip(found, truth, strict=True))

    def forward(self, run: Function) -> Callable[[], Any]:
        """The call without gradients."""

        def work() -> None:
            with torch.no_grad():
                run(*self.operands)

        return work

    def backward(self, run: Function) -> Callable[[], Any]:
        """The backward pass alone, again and again."""
        leaves = as_leaves(self.operands)
        out = run(*leaves)
        wanted = [t for t in leaves if t.requires_grad]
        upstream = torch.ones_like(out)
        return lambda: torch.autograd.grad(out, wanted, upstream, retain_graph=True)


def importable(name: str) -> bool:
    """Whether a peer is installed."""
    return importlib.util.find_spec(name) is not None


def as_leaves(operands: tuple[Tensor, ...]) -> list[Tensor]:
    """Copies that want gradients, where they are floats."""
    return [t.detach().clone().requires_grad_(t.is_floating_point()) for t in operands]


def differentiated(run: Function, operands: tuple[Tensor, ...]) -> list[Tensor]:
    """The result, and the gradients of all floats for an upstream one of waves."""
    leaves = as_leaves(operands)
    out = run(*leaves)
    waves = torch.arange(out.numel(), device=out.device, dtype=torch.float64).sin().view(out.shape)
    wanted = [t for t in leaves if t.requires_grad]
    return [out.detach(), *torch.autograd.grad(out, wanted, waves.to(out.dtype))]


def distance(found: Tensor, truth: Tensor) -> float:
    """The largest difference, relative to the largest entry."""
    largest = truth.abs().max().clamp_min(1e-30)
    return float((found.double() - truth.double()).abs().max() / largest)


def _computed(run: Function, operands: tuple[Tensor, ...]) -> list[Tensor]:
    return _results(run(*operands))


def _results(found: Any) -> list[Tensor]:
    return list(found) if isinstance(found, tuple) else [found]
