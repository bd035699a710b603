"""Sizes of torch (SymInts over sympy) as sizes of the IR, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._sympy import functions as torch_sympy

from seqmix.dtypes import dtype_name, torch_dtype
from seqmix.errors import CaptureError
from seqmix_ir.dims import (
    Dim,
    Opaque,
    Size,
    dim,
    floordiv,
    isqrt,
    maximum_size,
    minimum_size,
)
from seqmix_ir.types import TensorType

__all__ = ["Symbols", "size_of", "type_of"]

NO_NAMES: Mapping[str, str] = {}


def type_of(tensor: torch.Tensor, names: Mapping[str, str] = NO_NAMES) -> TensorType:
    """The IR type of a tensor; ``names`` maps torch's symbols (``s77``) to dimension names."""
    return TensorType(dtype_name(tensor.dtype), tuple(size_of(s, names) for s in tensor.shape))


def size_of(size: Any, names: Mapping[str, str] = NO_NAMES) -> Size:
    """A torch size (int or SymInt) as a size of the IR; CaptureError when it has none."""
    if isinstance(size, int):
        return int(size)
    return _from_expression(size.node.expr, names)


class Symbols:
    """The way back: makes SymInts out of IR sizes, in the shape environment of some tensors."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Find the shape environment and the symbols of the tensors' shapes."""
        self._environment: Any = None
        self._known: dict[str, sympy.Symbol] = {}
        for tensor in tensors:
            for size in tensor.shape:
                if not isinstance(size, int):
                    self._environment = size.node.shape_env
                    self._known.update({s.name: s for s in size.node.expr.free_symbols})

    def size(self, size: Size) -> Any:
        """``size`` as int or SymInt."""
        if isinstance(size, int):
            return size
        return self._environment.create_symintnode(self._expression(size), hint=None)

    def empty(self, type: TensorType, device: torch.device) -> torch.Tensor:
        """An uninitialised tensor of the type."""
        shape = [self.size(s) for s in type.shape]
        return torch.empty(shape, dtype=torch_dtype(type.dtype), device=device)

    def _expression(self, size: Size) -> Any:
        if isinstance(size, int):
            return sympy.Integer(size)
        terms = [
            sympy.Mul(coefficient, *[self._atom(atom) for atom in monomial])
            for monomial, coefficient in size.terms
        ]
        return sympy.Add(*terms)

    def _atom(self, atom: str | Opaque) -> Any:
        if isinstance(atom, str):
            return self._known[atom]
        args = [self._expression(arg) for arg in atom.args]
        if atom.kind == "floordiv":
            return torch_sympy.FloorDiv(*args)
        if atom.kind == "ceildiv":
            return torch_sympy.FloorDiv(args[0] + args[1] - 1, args[1])
        if atom.kind == "isqrt":
            # Exact for every size below 2**52: the root of a float64 is the nearest one.
            root = torch_sympy.OpaqueUnaryFn_sqrt(torch_sympy.ToFloat(args[0]))
            return torch_sympy.FloorToInt(root)
        return (torch_sympy.Min if atom.kind == "min" else torch_sympy.Max)(*args)


def _from_expression(expression: Any, names: Mapping[str, str]) -> Size:
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return dim(names.get(expression.name, expression.name))
    if (square := _square(expression)) is not None:
        return isqrt(_from_expression(square, names))
    rule = _RULES.get(type(expression).__name__)
    if rule is None:
        raise CaptureError(
            f"size {expression}: the IR has no '{type(expression).__name__}' of sizes; "
            "use +, -, *, //, min, max and the root rounded down"
        )
    return rule([_from_expression(arg, names) for arg in expression.args])


def _square(expression: Any) -> Any:
    """``x`` where the expression is ``math.floor(torch.sym_sqrt(x))``, else None."""
    if type(expression).__name__ not in ("FloorToInt", "TruncToInt"):
        return None
    root = expression.args[0]
    if type(root).__name__ != "OpaqueUnaryFn_sqrt" or type(root.args[0]).__name__ != "ToFloat":
        return None
    return root.args[0].args[0]


def _sum(args: list[Size]) -> Size:
    total: Size = 0
    for arg in args:
        total = total + arg
    return total


def _product(args: list[Size]) -> Size:
    total: Size = 1
    for arg in args:
        total = total * arg
    return total


def _power(args: list[Size]) -> Size:
    base, exponent = args
    if isinstance(exponent, Dim) or exponent < 0:
        raise CaptureError(f"size {base} ** {exponent}: only fixed powers >= 0 of sizes exist")
    return _product([base] * exponent)


def _remainder(args: list[Size]) -> Size:
    return args[0] - floordiv(args[0], args[1]) * args[1]


_RULES: dict[str, Callable[[list[Size]], Size]] = {
    "Add": _sum,
    "Mul": _product,
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": lambda args: floordiv(args[0], args[1]),
    "CleanDiv": lambda args: floordiv(args[0], args[1]),
    "Mod": _remainder,
    "PythonMod": _remainder,
    "Max": lambda args: maximum_size(*args),
    "Min": lambda args: minimum_size(*args),
}
