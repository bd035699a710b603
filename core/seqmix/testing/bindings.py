"""An op that is bound to torch: its kernel, fake kernel, gradients and capture."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from seqmix import registry
from seqmix.capture import capture_function
from seqmix.errors import PluginError
from seqmix.op import TorchOp, bound_ops
from seqmix.testing.cases import GRAPH, Case, make_case
from seqmix.testing.poison import poisoned, uses_fft
from seqmix.testing.report import Row
from seqmix.weights import to_numpy, to_torch
from seqmix_ir.defn import Example, OpDef
from seqmix_ir.errors import IRError
from seqmix_ir.interpret import Interpreter
from seqmix_ir.types import FLOATS, DType

__all__ = ["check_binding", "find_binding"]

_UTILS = ("test_schema", "test_autograd_registration", "test_faketensor")
"""The checks of torch that take no tracing: aliasing and mutation, autograd, fake kernel."""


def find_binding(cls: type[OpDef]) -> TorchOp | None:
    """What torch calls an op; None when neither its package's mixers nor the core have bound it."""
    import seqmix.ops  # noqa: F401  (binds the ops of the core)

    package = cls.__module__.split(".")[0]
    for contribution in registry.contributions():
        if contribution.kind == "mixers" and contribution.value.split(".")[0] == package:
            # A mixer that does not load has a report of its own.
            with suppress(PluginError):
                registry.get("mixers", contribution.name)
    return next((bound for bound in bound_ops().values() if bound.defn is cls), None)


def check_binding(example: Example, bound: TorchOp, dtypes: Sequence[DType]) -> Iterator[Row]:
    """The op in torch against its definition: values, fake kernel, derivative, capture."""
    for dtype in dtypes:
        try:
            case = make_case(example, dtype)
        except IRError:
            # That the op refuses a dtype is said already.
            continue
        yield _attempt("torch kernel", dtype, lambda c=case: _kernel(c, bound))
    case = make_case(example, "f32")
    yield _attempt("torch fake kernel", "f32", lambda: _fake(case, bound))
    yield _attempt("torch gradients", "f64", lambda: _gradients(example, bound))
    yield _attempt("torch capture", "f32", lambda: _captured(case, bound))


def _attempt(check: str, where: str, run: Any) -> Row:
    try:
        found: Row = run()
    except Exception as error:  # Kernels come from plugins: what they raise is a finding.
        return Row(check, where, 1.0, 0.0, f"{type(error).__name__}: {error}")
    return found


def _kernel(case: Case, bound: TorchOp) -> Row:
    """The eager kernel, with memory that it does not write poisoned."""
    operands, attributes = _operands(case, bound), case.example.defn.attributes()
    with torch.no_grad():
        spread = uses_fft(lambda: bound.eager(*operands, **attributes))
    with poisoned(not spread):
        out = bound(*operands, **attributes)
    return case.row("torch kernel", case.dtype, _named(case, out))


def _fake(case: Case, bound: TorchOp) -> Row:
    """The fake kernel gives shapes, dtypes and strides of the true one, which is pure."""
    operands, attributes = _operands(case, bound), case.example.defn.attributes()
    with warnings.catch_warnings():
        # torch's own checks use what torch itself has deprecated.
        warnings.simplefilter("ignore")
        torch.library.opcheck(bound.overload, operands, attributes, test_utils=_UTILS)
    return Row("torch fake kernel", case.dtype, 0.0, 0.0)


def _gradients(example: Example, bound: TorchOp) -> Row:
    """Gradcheck of every float result in every float operand."""
    row = Row("torch gradients", "f64", 0.0, 0.0)
    case = make_case(example, "f64")
    flat = [None if a is None else to_torch(a) for a in case.operands]
    # Gradcheck refuses what has no elements, such as the tail of a convolution of one tap.
    present = {i: t for i, t in enumerate(flat) if t is not None and t.numel()}
    places = [i for i, t in present.items() if t.is_floating_point()]
    results = case.module.graph(GRAPH).results.values()
    floats = [i for i, value in enumerate(results) if value.type.dtype in FLOATS]
    if not places or not floats or not hasattr(torch.ops.seqmix, f"{bound.name}_backward"):
        return row

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        operands = list(flat)
        for place, tensor in zip(places, given, strict=True):
            operands[place] = tensor
        out = bound(*_grouped(bound, operands), **example.defn.attributes())
        every = out if isinstance(out, tuple) else (out,)
        return tuple(every[i] for i in floats)

    inputs = [present[i].clone().requires_grad_() for i in places]
    # fast_mode projects on random directions: it sees every entry at the cost of two calls.
    torch.autograd.gradcheck(run, inputs, fast_mode=True, atol=1e-6, rtol=1e-4)
    return row


def _captured(case: Case, bound: TorchOp) -> Row:
    """Captured, the call is one op, and means the same."""
    names, results = list(case.inputs), list(case.expected)
    tensors = [to_torch(array) for array in case.inputs.values()]
    found = capture_function(
        _Call(case, bound),
        tensors,
        input_names=names,
        output_names=results,
        dynamic=[None] * len(names),
        graph=GRAPH,
    )
    written = [op.name for op in found.module.graph(GRAPH).block.ops]
    if written != [case.op.name]:
        detail = f"captured as {', '.join(written) or 'nothing'}"
        return Row("torch capture", case.dtype, 1.0, 0.0, detail)
    weights = {name: to_numpy(tensor) for name, tensor in found.weights.items()}
    out = Interpreter(found.module, weights, judge=True).run(GRAPH, case.inputs)
    return case.row("torch capture", case.dtype, out, judge=True)


class _Call(nn.Module):
    """The op as a module of its present operands."""

    def __init__(self, case: Case, bound: TorchOp) -> None:
        super().__init__()
        self._bound = bound
        self._present = [a is not None for a in case.operands]
        self._attributes = case.example.defn.attributes()

    def forward(self, *tensors: Tensor) -> Any:
        """Call the op with the absent operands in their places."""
        given = iter(tensors)
        flat = [next(given) if here else None for here in self._present]
        return self._bound(*_grouped(self._bound, flat), **self._attributes)


def _operands(case: Case, bound: TorchOp) -> tuple[Any, ...]:
    return _grouped(bound, [None if a is None else to_torch(a) for a in case.operands])


def _grouped(bound: TorchOp, flat: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """Operands as the schema takes them: a variadic one is a list."""
    fixed = sum(not name.startswith("*") for name in bound.defn.operands)
    if fixed == len(bound.defn.operands):
        return tuple(flat)
    return (*flat[:fixed], list(flat[fixed:]))


def _named(case: Case, out: Any) -> dict[str, Tensor]:
    every = out if isinstance(out, tuple) else (out,)
    return dict(zip(case.module.graph(GRAPH).results, every, strict=True))
