"""What stands for a cell's loop: derived once per cell, shapes, dtypes and wanted gradients."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, TypeAlias

import torch
from torch import Tensor

from seqmix.dtypes import torch_dtype
from seqmix.eager.devices import Writer, Written
from seqmix.eager.identity import Identity, identify
from seqmix.eager.probe import STEPS, disagreement
from seqmix.eager.trace import TracedCell, trace_cell
from seqmix.errors import BackendError, CaptureError
from seqmix_ir.adjoint import Adjoint, adjoint
from seqmix_ir.errors import IRError

__all__ = ["Call", "Plan", "fallbacks", "forget", "note", "plan_for", "plans"]

Tensors: TypeAlias = tuple[Tensor, ...]
Loop: TypeAlias = "Callable[[Tensors, Tensors, Tensors], tuple[Tensors, Tensors]]"

_ROOM = 64
"""Plans that are kept; the one that was not used for the longest time goes first."""

_MOST = 32
"""Plans of one code: a cell that refers to something new in each call is not traced each time."""

_PLANS: OrderedDict[Hashable, Plan | None] = OrderedDict()
_FALLBACKS: dict[str, str] = {}
_TRIED: Counter[str] = Counter()
_LOG = logging.getLogger(__name__)
_ONE_THREAD = RLock()
"""Deriving draws from torch's generator and restores it, and plans make room for each other."""


@dataclass(frozen=True)
class Call:
    """The arguments of one ``seqmix.scan``, and the plain loop that does the same."""

    cell: Callable[..., Any]
    carries: Tensors
    sequences: Tensors
    constants: Tensors
    axis: int
    reverse: bool
    loop: Loop
    writer: Writer
    """Writes the derived graphs as functions for the device of the operands."""

    @property
    def operands(self) -> Tensors:
        """Carries, sequences, constants."""
        return (*self.carries, *self.sequences, *self.constants)

    @property
    def ends(self) -> tuple[int, int]:
        """Where among the operands the sequences begin, and the constants."""
        return len(self.carries), len(self.carries) + len(self.sequences)


@dataclass(frozen=True)
class Plan:
    """Functions on the operands of a scan, then tensors that its cell refers to.

    ``takes`` numbers the operands that the backward function reads.
    """

    traced: TracedCell
    derived: Adjoint
    forward: Written
    backward: Written
    takes: tuple[int, ...]
    kept: tuple[Any, ...] = field(repr=False, default=())

    def run(self, operands: Tensors) -> tuple[Tensors, Tensors]:
        """The results of the scan, and what is saved."""
        found = self.forward(*operands)
        count = len(self.traced.op.results)
        return found[:count], found[count:]

    def pull(self, operands: Tensors, saved: Tensors, grads: Sequence[Tensor | None]) -> Tensors:
        """Cotangents of the operands ``derived.wrt`` from those of the results."""
        given = [operands[i] for i in self.takes]
        given += saved
        for i in self.derived.cotangents:
            grad = grads[i]
            given.append(self._zeros(operands, i) if grad is None else grad)
        return self.backward(*given)

    def _zeros(self, operands: Tensors, place: int) -> Tensor:
        """The cotangent of a result that nobody used."""
        type = self.traced.op.results[place].type
        scan: Any = self.traced.op.defn
        length = operands[scan.carries].shape[scan.axis]
        shape = [size if isinstance(size, int) else length for size in type.shape]
        return operands[0].new_zeros(shape, dtype=torch_dtype(type.dtype))


def fallbacks() -> dict[str, str]:
    """Cells that run as plain loops though they train: name (file:line) and the reason."""
    return dict(_FALLBACKS)


def plans() -> list[Plan]:
    """Every plan at hand, newest last; their functions have a ``source``."""
    return [plan for plan in _PLANS.values() if plan is not None]


def forget() -> None:
    """Drop all plans and all reasons."""
    for known in (_PLANS, _FALLBACKS, _TRIED):
        known.clear()


def note(call: Call, reason: str) -> None:
    """Say once why a cell loops."""
    where = _where(call.cell)
    if _FALLBACKS.get(where) != reason:
        _FALLBACKS[where] = reason
        _LOG.debug("seqmix.scan runs %s as a plain loop: %s", where, reason)


def _where(cell: Any) -> str:
    code = getattr(cell, "__code__", None)
    name = getattr(cell, "__qualname__", type(cell).__name__)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name


def plan_for(call: Call, identity: Identity) -> Plan | None:
    """The plan for a call; None where there can be none, which is noted."""
    with _ONE_THREAD:
        return _known_or_derived(call, identity)


def _known_or_derived(call: Call, identity: Identity) -> Plan | None:
    key = _key(call, identity)
    if key in _PLANS:
        _PLANS.move_to_end(key)
        return _PLANS[key]
    where = _where(call.cell)
    _TRIED[where] += 1
    if _TRIED[where] > _MOST:
        note(call, f"it was another cell in {_MOST} calls; give what differs as constants")
        return None
    plan: Plan | None = None
    try:
        # Whatever a cell draws while it is looked at, its loop shall draw again.
        with torch.random.fork_rng(_cards(call)):
            _tried_once(call)
            plan = _derived(call, identity)
    except (CaptureError, IRError, BackendError) as error:
        note(call, str(error).partition("\n")[0])
    _PLANS[key] = plan
    while len(_PLANS) > _ROOM:
        _PLANS.popitem(last=False)
    return plan


def _key(call: Call, identity: Identity) -> Hashable:
    """All that a plan depends on: the number of steps is not among it."""
    first, second = call.ends
    types = []
    for i, t in enumerate((*call.operands, *identity.tensors)):
        shape = list(t.shape)
        if first <= i < second:
            shape[call.axis] = -1
        types.append((tuple(shape), t.dtype, t.requires_grad))
    kind = (call.ends, len(call.constants), call.axis, call.reverse, call.writer)
    return identity.key, kind, tuple(types)


def _cards(call: Call) -> list[torch.device]:
    """The device of the operands where it draws numbers of its own."""
    device = call.operands[0].device
    return [] if device.type == "cpu" else [device]


def _tried_once(call: Call) -> None:
    """One step by the loop, which raises what it has to say of a wrong cell."""
    first = tuple(s.narrow(call.axis, 0, 1) for s in call.sequences)
    with torch.no_grad():
        call.loop(call.carries, first, call.constants)


def _derived(call: Call, identity: Identity) -> Plan:
    given = (call.carries, call.sequences, call.constants)
    traced = trace_cell(call.cell, *given, call.axis, call.reverse, identity.tensors)
    extra = tuple(identity.tensors[i] for i in traced.closed_over)
    wrt = [i for i, t in enumerate((*call.operands, *extra)) if t.requires_grad]
    if not wrt:
        raise CaptureError("no tensor that the cell uses needs a gradient")
    derived = adjoint(traced.op, wrt)
    forward, backward = call.writer(derived.forward), call.writer(derived.backward)
    takes = tuple(int(n[1:]) for n in derived.backward.inputs if n.startswith("x"))
    plan = Plan(traced, derived, forward, backward, takes, identity.kept)
    if reason := _disagreement(call, plan, extra):
        raise CaptureError(reason)
    after = identify(call.cell)
    if after is None or after.key != identity.key:
        raise CaptureError("the cell changes what it refers to")
    return plan


def _disagreement(call: Call, plan: Plan, extra: Tensors) -> str | None:
    """Two steps by the loop under autograd and by the plan."""
    first, second = call.ends
    leaves: list[Tensor] = []
    for i, t in enumerate(call.operands):
        part = t.narrow(call.axis, 0, STEPS) if first <= i < second else t
        leaves.append(part.detach().requires_grad_(t.requires_grad))
    groups = leaves[:first], leaves[first:second], leaves[second:]
    with torch.enable_grad():
        last, outputs = call.loop(*map(tuple, groups))
    operands = (*(t.detach() for t in leaves), *(t.detach() for t in extra))

    def derived(grads: Sequence[Tensor | None]) -> tuple[Tensors, Tensors]:
        results, saved = plan.run(operands)
        return results, plan.pull(operands, saved, grads)

    inputs = [(*leaves, *extra)[i] for i in plan.derived.wrt]
    with torch.no_grad():
        return disagreement((*last, *outputs), inputs, derived)
