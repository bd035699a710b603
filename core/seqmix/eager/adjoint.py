"""``seqmix.scan`` with gradients: the loop and its adjoint as functions of its tensors.

What autograd would record for every op of every step is derived once per cell on the graph of the
IR: the loop back has the few ops that depend on what flows back, and all else is computed for all
steps at once. On the CPU these functions are calls of torch; a package with kernels says by
:func:`write_with` what they are on its device. A cell of which that cannot be had runs as a plain
loop; :func:`fallbacks` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from seqmix.eager.devices import write_with, writer_for
from seqmix.eager.identity import identify
from seqmix.eager.plan import Call, Loop, Plan, fallbacks, note, plan_for, plans
from seqmix.threads import one_thread

__all__ = ["fallbacks", "plans", "run_adjoint", "write_with"]

Tensors: TypeAlias = tuple[Tensor, ...]


def run_adjoint(
    cell: Callable[..., Any],
    operands: tuple[Tensors, Tensors, Tensors],
    axis: int,
    reverse: bool,
    loop: Loop,
) -> tuple[Tensors, Tensors] | None:
    """The results of the scan, with gradients by the derived adjoint; None where it must loop.

    ``operands`` are carries, sequences and constants; ``loop`` does the same with them.
    """
    device = operands[0][0].device
    writer = writer_for(device.type)
    if writer is None or _is_watched(device.type):
        return None
    call = Call(cell, *operands, axis, reverse, loop, writer)
    if not _are_plain(call.operands, device):
        return None
    identity = identify(cell)
    if identity is None:
        note(call, "it refers to more than can be followed")
        return None
    tensors = (*call.operands, *identity.tensors)
    if not _are_plain(tensors, device) or not any(t.requires_grad for t in tensors):
        return None
    plan = plan_for(call, identity)
    if plan is None:
        return None
    extra = tuple(identity.tensors[i] for i in plan.traced.closed_over)
    apply: Any = _Scan.apply
    results: Tensors = apply(plan, call, *call.operands, *extra)
    count = len(call.carries)
    return results[:count], results[count:]


def _are_plain(tensors: Sequence[Tensor], device: torch.device) -> bool:
    """Ordinary tensors on one device."""
    return all(
        type(t) in (Tensor, torch.nn.Parameter) and t.device == device and t.layout == torch.strided
        for t in tensors
    )


def _is_watched(device: str) -> bool:
    """Compilers, transforms, modes and forward gradients want to see the loop itself."""
    return (
        torch.compiler.is_compiling()
        or torch.is_autocast_enabled(device)
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch.autograd.forward_ad._current_level >= 0
    )


class _Scan(torch.autograd.Function):
    """The whole loop as one function of autograd."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, call: Call, *operands: Tensor) -> tuple[Tensor, ...]:
        ctx.plan, ctx.loop, ctx.ends = plan, call.loop, (*call.ends, len(call.operands))
        ctx.work, ctx.count = _work(call), len(operands)
        with one_thread(ctx.work):
            found, saved = plan.run(operands)
        results = _fresh(found, operands)
        ctx.save_for_backward(*operands, *saved)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(r for r in results if not r.is_floating_point()))
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        operands, saved = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        if torch.is_grad_enabled():
            found = _by_the_loop(ctx, operands, grads)
        else:
            with one_thread(ctx.work):
                found = plan.pull(operands, saved, grads)
        by_place = dict(zip(plan.derived.wrt, found, strict=True))
        return None, None, *(by_place.get(i) for i in range(ctx.count))


def _work(call: Call) -> int:
    """About how many multiply-adds a step has: a matrix in it takes every row."""
    rows = max(t.numel() // max(1, t.shape[-1] if t.ndim else 1) for t in call.carries)
    return rows * max((t.numel() for t in call.constants), default=1)


def _fresh(results: Tensors, operands: Tensors) -> Tensors:
    """Contiguous results that share memory with no operand and not with each other."""
    seen = {t.untyped_storage().data_ptr() for t in operands}
    out = []
    for result in results:
        own = result.contiguous()
        own = own.clone() if own.untyped_storage().data_ptr() in seen else own
        seen.add(own.untyped_storage().data_ptr())
        out.append(own)
    return tuple(out)


def _by_the_loop(
    ctx: Any, operands: Tensors, grads: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Gradients that can be differentiated again: those of the plain loop, by autograd."""
    first, second, third = ctx.ends
    with torch.enable_grad():
        last, outputs = ctx.loop(operands[:first], operands[first:second], operands[second:third])
    results = [*last, *outputs]
    used = [i for i, g in enumerate(grads) if g is not None and results[i].requires_grad]
    return torch.autograd.grad(
        [results[i] for i in used],
        [operands[i] for i in ctx.plan.derived.wrt],
        [g for i, g in enumerate(grads) if i in used and g is not None],
        create_graph=True,
        allow_unused=True,
    )
