"""Run a recurrent cell along a sequence: a loop eagerly, one node under torch.export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from seqmix.errors import ConfigError

__all__ = ["SHORTEST", "Cell", "scan"]

SHORTEST = 32
"""Steps from which on a cell is traced for its adjoint: one loop of fewer is cheaper than that."""

Tensors: TypeAlias = tuple[Tensor, ...]
Cell: TypeAlias = Callable[[Tensors, Tensors, Tensors], tuple[Sequence[Tensor], Sequence[Tensor]]]


def scan(
    cell: Cell,
    carries: Sequence[Tensor],
    sequences: Sequence[Tensor],
    constants: Sequence[Tensor] = (),
    *,
    axis: int = 1,
    reverse: bool = False,
) -> tuple[Tensors, Tensors]:
    """Run ``cell(carries, slices, constants) -> (new carries, output slices)`` along ``axis``.

    Each sequence is sliced along ``axis``; returns the last carries and the outputs stacked along
    ``axis``, in the order of the sequence even when ``reverse`` runs it from the end. New carries
    must keep shapes and dtypes. Raises :class:`ConfigError` when they do not, and for length 0.

    Where gradients are wanted on the CPU, from :data:`SHORTEST` steps on, the cell is traced once
    and its adjoint derived: the loop back then has the few ops that depend on what flows back, and
    nothing is recorded step by step. A cell that depends on values, is random, has side effects or
    a backward pass of its own runs as a loop under autograd;
    :func:`seqmix.eager.adjoint.fallbacks` says which and why. Second derivatives are those of the
    loop.
    """
    carries, sequences, constants = tuple(carries), tuple(sequences), tuple(constants)
    axis = _check(carries, sequences, axis)
    if torch.compiler.is_exporting():
        return _one_node(cell, carries, sequences, constants, axis, reverse)
    return _trained(cell, carries, sequences, constants, axis, reverse)


def _trained(
    cell: Cell,
    carries: Tensors,
    sequences: Tensors,
    constants: Tensors,
    axis: int,
    reverse: bool,
) -> tuple[Tensors, Tensors]:
    """By the adjoint of the cell where gradients are wanted and it can be derived, else a loop."""

    def loop(carries: Tensors, sequences: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
        return _loop(cell, carries, sequences, constants, axis, reverse)

    if torch.is_grad_enabled() and sequences[0].shape[axis] >= SHORTEST:
        # Derivation brings the capture with it, which a loop without gradients never needs.
        from seqmix.eager.adjoint import run_adjoint

        found = run_adjoint(cell, (carries, sequences, constants), axis, reverse, loop)
        if found is not None:
            return found
    return loop(carries, sequences, constants)


def _loop(
    cell: Cell,
    carries: Tensors,
    sequences: Tensors,
    constants: Tensors,
    axis: int,
    reverse: bool,
) -> tuple[Tensors, Tensors]:
    slices = list(zip(*(s.unbind(axis) for s in sequences), strict=True))
    first = carries
    steps: list[Tensors] = []
    for t in reversed(range(len(slices))) if reverse else range(len(slices)):
        carries, outputs = _step(cell, carries, slices[t], constants, axis)
        steps.append(outputs)
    if reverse:
        steps.reverse()
    stacked = tuple(torch.stack(column, axis) for column in zip(*steps, strict=True))
    return _unaliased(carries, (*first, *sequences, *constants)), stacked


def _step(
    cell: Cell, carries: Tensors, slices: Tensors, constants: Tensors, axis: int
) -> tuple[Tensors, Tensors]:
    """One call of the cell, with what it returns checked."""
    new, outputs = _pair(cell(carries, slices, constants))
    if len(new) != len(carries):
        raise ConfigError(
            f"scan: the cell returned {len(new)} carries, expected {len(carries)}; "
            "return (new carries, output slices), each a tuple"
        )
    for i, (before, after) in enumerate(zip(carries, new, strict=True)):
        if before.dtype == after.dtype and before.shape == after.shape:
            continue
        raise ConfigError(
            f"scan: carry {i} was {_describe(before)} and became {_describe(after)}; "
            "the cell must return it with the same shape and dtype (cast it back)"
        )
    for i, output in enumerate(outputs):
        if output.ndim < axis:
            raise ConfigError(
                f"scan: output {i} is {_describe(output)}, which cannot be stacked at axis {axis}"
            )
    return new, outputs


def _pair(returned: Any) -> tuple[Tensors, Tensors]:
    """What a cell returned, as two tuples of tensors; a tensor would be taken apart in silence."""
    groups = returned if isinstance(returned, tuple | list) else ()
    if len(groups) == 2 and all(isinstance(group, tuple | list) for group in groups):
        new, outputs = (tuple(group) for group in groups)
        if all(isinstance(t, Tensor) for t in (*new, *outputs)):
            return new, outputs
    found = [type(group).__name__ for group in groups] or type(returned).__name__
    raise ConfigError(
        f"scan: the cell returned {found}; expected (new carries, output slices), "
        "each a tuple of tensors"
    )


def _one_node(
    cell: Cell,
    carries: Tensors,
    sequences: Tensors,
    constants: Tensors,
    axis: int,
    reverse: bool,
) -> tuple[Tensors, Tensors]:
    """The scan as one node of an exported graph; parameters that the cell uses become inputs."""
    # An error inside the traced cell would lose its text, so the cell is tried once outside; what
    # this adds to the graph is unused and dropped.
    _step(cell, carries, tuple(s.select(axis, 0) for s in sequences), constants, axis)
    count = len(carries)

    def combine(carry: list[Tensor], slices: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        new, outputs = cell(tuple(carry), tuple(slices), constants)
        # torch refuses results that share memory with each other or with an argument, and carries
        # that leave with other strides than they came with.
        kept = [t.clone(memory_format=torch.contiguous_format) for t in new]
        return kept, [t.clone() for t in outputs]

    # Torch tells what goes into the traced cell by identity: a tensor that is two carries, or a
    # carry and a constant, would be one thing in it.
    first = [t.clone(memory_format=torch.contiguous_format) for t in carries]
    last, outputs = _torch_scan(combine, first, list(sequences), axis, reverse)
    return tuple(last[:count]), tuple(outputs)


def _torch_scan(
    combine: Callable[..., Any],
    carries: list[Tensor],
    sequences: list[Tensor],
    axis: int,
    reverse: bool,
) -> tuple[list[Tensor], list[Tensor]]:
    """The scan of torch itself: a private module, used here and nowhere else."""
    from torch._higher_order_ops.scan import scan as torch_scan

    result: tuple[list[Tensor], list[Tensor]] = torch_scan(
        combine, carries, sequences, dim=axis, reverse=reverse
    )
    return result


def _check(carries: Tensors, sequences: Tensors, axis: int) -> int:
    """The axis as a number >= 0; ConfigError when the arguments cannot be scanned."""
    if not carries or not sequences:
        raise ConfigError(
            f"scan: got {len(carries)} carries and {len(sequences)} sequences; it needs one of each"
        )
    rank = min(s.ndim for s in sequences)
    if not -rank <= axis < rank:
        raise ConfigError(f"scan: axis {axis} does not exist in a sequence of rank {rank}")
    if axis < 0 and any(s.ndim != rank for s in sequences):
        raise ConfigError(f"scan: axis {axis} means different axes; give an axis >= 0")
    axis = axis % rank
    lengths = [s.shape[axis] for s in sequences]
    if any(length != lengths[0] for length in lengths):
        raise ConfigError(f"scan: the sequences have lengths {lengths} along axis {axis}")
    if lengths[0] == 0:
        raise ConfigError(f"scan: the sequences have length 0 along axis {axis}; it must be >= 1")
    return axis


def _unaliased(carries: Tensors, given: Tensors) -> Tensors:
    """The carries, copied where one is an argument, a view of one, or there twice.

    A last carry that is a slice would keep its whole sequence alive.
    """
    seen, out = [_memory(t) for t in given], []
    for carry in carries:
        memory = _memory(carry)
        out.append(carry.clone() if memory in seen else carry)
        seen.append(memory)
    return tuple(out)


def _memory(tensor: Tensor) -> int:
    """What is equal for tensors that share memory; while torch traces, for the same tensor only."""
    if torch.compiler.is_compiling():
        return id(tensor)
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # Wrappers, such as those of vmap, have no memory.
        return id(tensor)


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
