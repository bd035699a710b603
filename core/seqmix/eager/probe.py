"""Whether a cell's derived gradient is the one that autograd gives it: asked once per cell.

What autograd sees is more than ops: a detached tensor, a part without gradients, a backward pass
that somebody wrote. So two steps are run both ways before the derived function is ever used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from seqmix.op import bound_ops

__all__ = ["STEPS", "disagreement"]

STEPS = 2
"""Of one step alone, some operands have no gradient in any cell."""


_TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-3}
_COARSE = 0.1
"""What 16-bit floats are allowed: their rounding alone is near a hundredth."""


def disagreement(
    results: Sequence[Tensor],
    inputs: Sequence[Tensor],
    derived: Callable[[Sequence[Tensor | None]], tuple[Sequence[Tensor], Sequence[Tensor]]],
) -> str | None:
    """Why the derived function may not stand for the loop; None where both agree.

    ``results`` are those of the loop, in autograd's graph from ``inputs``; ``derived`` gives its
    own results and the gradients of ``inputs`` from cotangents of the results.
    """
    if name := _own_backward(results, inputs):
        return f"its backward pass is its own: {name}"
    cotangents = [_cotangent(r, i) for i, r in enumerate(results)]
    used = [i for i, r in enumerate(results) if r.requires_grad]
    wanted = torch.autograd.grad(
        [results[i] for i in used],
        list(inputs),
        [c for i, c in enumerate(cotangents) if i in used and c is not None],
        allow_unused=True,
    )
    same, grads = derived(cotangents)
    if not all(_close(a, b) for a, b in zip(same, results, strict=True)):
        return "it computes something else when traced than when it runs"
    for found, expected in zip(grads, wanted, strict=True):
        if not _close(found, torch.zeros_like(found) if expected is None else expected):
            return "its gradient is not that of its ops: it detaches, or changes gradients"
    return None


def _cotangent(result: Tensor, seed: int) -> Tensor | None:
    """Numbers of order 1, whatever the state of the global generator."""
    if not result.is_floating_point():
        return None
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(result.shape, generator=generator, dtype=torch.float64)
    return drawn.to(result.dtype)


def _close(found: Tensor, wanted: Tensor) -> bool:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    if not found.is_floating_point():
        return torch.equal(found, wanted)
    a, b = found.detach().double(), wanted.detach().double()
    usual = b[b.isfinite()]
    scale = float(usual.abs().max()) if usual.numel() else 0.0
    limit = _TOLERANCES.get(found.dtype, _COARSE) * max(scale, 1e-30)
    return bool(torch.isclose(a, b, rtol=0.0, atol=limit, equal_nan=True).all())


def _own_backward(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> str:
    """The name of a backward pass in the graph that is neither torch's nor of an op of the IR.

    What made the inputs is not looked at.
    """
    known = {f"GeneratedBackwardFor_seqmix_{name}_defaultBackward" for name in bound_ops()}
    stack: list[Any] = [r.grad_fn for r in results if r.grad_fn is not None]
    seen: set[Any] = {t.grad_fn for t in inputs}
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction) and type(node).__name__ not in known:
            return type(node).__name__
        stack.extend(next for next, _ in node.next_functions if next is not None)
    return ""
