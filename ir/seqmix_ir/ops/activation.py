"""Activation functions of one element each, with their plain forms as decompositions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.errors import IRError
from seqmix_ir.ops.arithmetic import Add, Maximum, Mul
from seqmix_ir.ops.constants import constant
from seqmix_ir.ops.elementwise import Abs, Erf, Exp, Log, Neg, Reciprocal, Tanh, Unary, erf
from seqmix_ir.ops.precision import narrow, widen
from seqmix_ir.types import TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value

__all__ = ["OPS", "Gelu", "Relu", "Sigmoid", "Silu", "Softplus", "sigmoid"]

_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBE = 0.044715


def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))``; an overflow of the exponential is a correct 0."""
    y: Array = np.reciprocal(1 + np.exp(-x))
    return y


class _Activation(Unary):
    """A unary op with one plain form, computed in float32 at least and rounded once."""

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"direct": self._direct}

    def _direct(self, b: Builder, op: Op) -> tuple[Value, ...]:
        (x,) = op.values
        return (narrow(b, self.write(b, widen(b, x)), x.type.dtype),)

    def write(self, b: Builder, x: Value) -> Value:
        """The function in simpler ops, for ``x`` in float32 or float64."""
        raise IRError(f"activation '{self.name}' does not say how it is written in simpler ops")


@op
class Relu(_Activation):
    """``max(x, 0)``."""

    name = "relu"

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        return (np.maximum(x, x.dtype.type(0)),)

    def write(self, b: Builder, x: Value) -> Value:
        return b(Maximum(), x, constant(b, 0.0, x.type.dtype))


@op
class Sigmoid(_Activation):
    """``1 / (1 + exp(-x))``."""

    name = "sigmoid"
    function = staticmethod(sigmoid)

    def write(self, b: Builder, x: Value) -> Value:
        one = constant(b, 1.0, x.type.dtype)
        return b(Reciprocal(), b(Add(), one, b(Exp(), b(Neg(), x))))


@op
class Softplus(_Activation):
    """``log(1 + exp(x))``, without overflow."""

    name = "softplus"

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        return (np.logaddexp(x, x.dtype.type(0)),)

    def write(self, b: Builder, x: Value) -> Value:
        zero, one = constant(b, 0.0, x.type.dtype), constant(b, 1.0, x.type.dtype)
        small = b(Log(), b(Add(), one, b(Exp(), b(Neg(), b(Abs(), x)))))
        return b(Add(), b(Maximum(), x, zero), small)


@op
class Silu(_Activation):
    """``x * sigmoid(x)``, also called swish."""

    name = "silu"

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        return (x * sigmoid(x),)

    def write(self, b: Builder, x: Value) -> Value:
        return b(Mul(), x, b(Sigmoid(), x))


@op
class Gelu(_Activation):
    """``x * Phi(x)`` with the normal distribution function, or its ``"tanh"`` approximation."""

    name = "gelu"
    approximate: str = "none"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if self.approximate not in ("none", "tanh"):
            raise IRError(f"gelu: approximate is {self.approximate!r}, expected 'none' or 'tanh'")
        return super().infer(x)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        if self.approximate == "none":
            return (0.5 * x * (1 + erf(x * math.sqrt(0.5))),)
        return (0.5 * x * (1 + np.tanh(_TANH_SCALE * (x + _TANH_CUBE * x * x * x))),)

    def write(self, b: Builder, x: Value) -> Value:
        dtype = x.type.dtype
        if self.approximate == "none":
            curve = b(Erf(), b(Mul(), x, constant(b, math.sqrt(0.5), dtype)))
        else:
            cube = b(Mul(), b(Mul(), b(Mul(), x, x), x), constant(b, _TANH_CUBE, dtype))
            inner = b(Mul(), b(Add(), x, cube), constant(b, _TANH_SCALE, dtype))
            curve = b(Tanh(), inner)
        half = b(Mul(), x, constant(b, 0.5, dtype))
        return b(Mul(), half, b(Add(), curve, constant(b, 1.0, dtype)))

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        return [*super().examples(rng), Example(cls("tanh"), (rng.standard_normal((3, 5)),))]


OPS: tuple[type[OpDef], ...] = (Relu, Sigmoid, Softplus, Silu, Gelu)
