"""The rules that turn calls of torch's ops into ops of the IR, by name.

A rule is a function ``rule(call, *args, **kwargs)``: tensors arrive as values of the IR, sizes as
sizes, everything else as torch wrote it. It returns one value, or a tuple for several results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import torch

from seqmix.dtypes import dtype_name
from seqmix.errors import CaptureError
from seqmix.symbols import type_of
from seqmix_ir.builder import Builder
from seqmix_ir.dims import Dim, Size
from seqmix_ir.graph import Value
from seqmix_ir.ops import Cast, constant, size_value
from seqmix_ir.types import DType, TensorType

__all__ = ["RULES", "Call", "Rule", "Traces", "aten"]

Rule: TypeAlias = "Callable[..., Value | tuple[Value, ...]]"
Written = TypeVar("Written", bound=Rule)
RULES: dict[str, Rule] = {}


def aten(*names: str) -> Callable[[Written], Written]:
    """Decorator: use the function for ``aten.<name>``, such as ``add.Tensor``.

    A name without overload stands for ``.default``.
    """

    def register(rule: Written) -> Written:
        for name in names:
            RULES[f"aten.{name}" if "." in name else f"aten.{name}.default"] = rule
        return rule

    return register


@dataclass
class Traces:
    """Which values are another value with an axis moved to the front, or flipped there.

    torch moves and flips around its scan; the scan of the IR has attributes for both.
    """

    moved: dict[Value, tuple[Value, int]] = field(default_factory=dict)
    flipped: dict[Value, Value] = field(default_factory=dict)


@dataclass
class Call:
    """One call in the exported graph: where it writes, and what torch says of its results."""

    b: Builder
    node: Any
    names: Mapping[str, str]
    traces: Traces

    @property
    def type(self) -> TensorType:
        """The type of the result."""
        return type_of(self.node.meta["val"], self.names)

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The types of the results, where there are several."""
        return tuple(type_of(t, self.names) for t in self.node.meta["val"])

    @property
    def dtype(self) -> DType:
        """The element type of the result."""
        return self.type.dtype

    @property
    def shape(self) -> tuple[Size, ...]:
        """The shape of the result."""
        return self.type.shape

    def cast(self, x: Value, dtype: DType) -> Value:
        """``x`` as ``dtype``."""
        return x if x.type.dtype == dtype else self.b(Cast(dtype), x)

    def scalar(self, value: Any, dtype: DType) -> Value:
        """A number or a size as a scalar value."""
        if isinstance(value, Dim):
            return size_value(self.b, value, dtype)
        kind = bool if dtype == "bool" else float if dtype[0] in "fb" else int
        return constant(self.b, kind(value), dtype)

    def operand(self, x: Any, dtype: DType) -> Value:
        """A value, number or size as a value of ``dtype``: torch's type promotion, spelled out."""
        return self.cast(x, dtype) if isinstance(x, Value) else self.scalar(x, dtype)

    def common_dtype(self, count: int = 2) -> DType:
        """What torch promotes the first ``count`` arguments to."""
        arguments = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in self.node.args]
        dtype: Any = torch.result_type(*[_plain(a) for a in arguments[:count]])
        return dtype_name(dtype)

    def refuse(self, reason: str, advice: str) -> CaptureError:
        """The error for a call that the IR cannot say; raise it."""
        return CaptureError(f"{self.b.loc}: {self.node.target}: {reason}; {advice}")


def _plain(argument: Any) -> Any:
    """A size stands for an integer where dtypes are compared."""
    return 1 if isinstance(argument, torch.SymInt) else argument
