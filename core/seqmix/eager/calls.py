"""How each op of the IR is written as a call of torch, as Python source.

A rule is ``rule(write, op, *names) -> source``; ``names`` are those of the operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from seqmix_ir.dims import Size
from seqmix_ir.graph import Op
from seqmix_ir.ops.rules import normal_axes, normal_axis

__all__ = ["CALLS", "SAME_WITH_NUMBERS", "Call", "Write"]


class Write(Protocol):
    """What a rule may ask of the writer."""

    def size(self, size: Size) -> str:
        """Source of a size."""

    def dtype(self, name: str) -> str:
        """Source of a dtype."""

    def constant(self, op: Op) -> str:
        """The name of a tensor that is made once."""


Call: TypeAlias = "Callable[..., str]"

SAME_WITH_NUMBERS = frozenset(
    {"add", "sub", "mul", "div", "less", "less_equal", "greater", "greater_equal"}
)
"""Ops whose operands may be numbers of Python, as long as one of them is a tensor."""

_SAME_NAME = (
    "abs", "acos", "acosh", "add", "argmax", "argmin", "asin", "asinh", "atan", "atanh", "ceil",
    "cos", "cosh", "div", "erf", "exp", "expm1", "floor", "log", "log1p", "maximum", "minimum",
    "mul", "neg", "pow", "reciprocal", "relu", "round", "sigmoid", "sign", "sin", "sinh", "sqrt",
    "sub", "tan", "tanh", "where", "not_equal", "greater", "greater_equal", "less",
    "less_equal",
)  # fmt: skip
_OTHER_NAME = {
    "and": "logical_and",
    "equal": "eq",
    "floor_div": "floor_divide",
    "mod": "remainder",
    "not": "logical_not",
    "or": "logical_or",
    "silu": "silu",
    "softplus": "softplus",
}


def _plain(name: str) -> Call:
    def call(write: Write, op: Op, *names: str) -> str:
        return f"{name}({', '.join(names)})"

    return call


def _shape(write: Write, sizes: tuple[Size, ...]) -> str:
    return f"({''.join(write.size(s) + ', ' for s in sizes)})"


def _of(op: Op) -> Any:
    return op.defn


def _axis(op: Op, place: int = 0) -> int:
    operand = op.operands[place]
    return normal_axis(_of(op).axis, operand.type.rank) if operand is not None else 0


def _itself(write: Write, op: Op, x: str) -> str:
    return x


def _constant(write: Write, op: Op) -> str:
    return write.constant(op)


def _cast(write: Write, op: Op, x: str) -> str:
    return f"{x}.to({write.dtype(_of(op).dtype)})"


def _gelu(write: Write, op: Op, x: str) -> str:
    return f"gelu({x}, approximate={_of(op).approximate!r})"


def _reshape(write: Write, op: Op, x: str) -> str:
    return f"{x}.reshape({_shape(write, op.results[0].type.shape)})"


def _transpose(write: Write, op: Op, x: str) -> str:
    return f"{x}.permute({_of(op).perm!r})"


def _expand(write: Write, op: Op, x: str) -> str:
    return f"{x}.expand({_shape(write, op.results[0].type.shape)})"


def _concat(write: Write, op: Op, *xs: str) -> str:
    return f"cat(({', '.join(xs)},), {_axis(op)})"


def _slice(write: Write, op: Op, x: str) -> str:
    defn, axis = _of(op), _axis(op)
    if defn.step == 1:
        length = write.size(defn.stop - defn.start)
        return f"{x}.narrow({axis}, {write.size(defn.start)}, {length})"
    ends = f"{write.size(defn.start)}:{write.size(defn.stop)}:{defn.step}"
    return f"{x}[{':, ' * axis}{ends}]"


def _pad(write: Write, op: Op, x: str) -> str:
    defn = _of(op)
    margins = f"{write.size(defn.before)}, {write.size(defn.after)}"
    return f"padded({x}, {_axis(op)}, {margins}, {defn.value!r})"


def _matmul(write: Write, op: Op, x: str, y: str) -> str:
    """Torch's matmul looks at ranks in every call; most are known here."""
    left, right = (v.type.shape for v in op.values)
    if len(left) == len(right) == 2:
        return f"mm({x}, {y})"
    if len(left) == len(right) == 3 and left[0] == right[0]:
        return f"bmm({x}, {y})"
    return f"matmul({x}, {y})"


def _linear(write: Write, op: Op, x: str, weight: str, bias: str) -> str:
    return f"linear({x}, {weight}, {bias})"


def _reduce(write: Write, op: Op, x: str) -> str:
    defn = _of(op)
    operand = op.values[0].type
    axes = normal_axes(defn.axes, operand.rank)
    if defn.kind == "prod":
        return f"product({x}, {axes!r}, {defn.keepdims})"
    name = {"max": "amax", "min": "amin"}.get(defn.kind, defn.kind)
    more = f", dtype={write.dtype(operand.dtype)}" if defn.kind == "sum" else ""
    return f"{name}({x}, {axes!r}, keepdim={defn.keepdims}{more})"


def _place(write: Write, op: Op, x: str) -> str:
    return f"{op.name}({x}, {_axis(op)}, keepdim={_of(op).keepdims})"


def _softmax(write: Write, op: Op, x: str) -> str:
    return f"softmax({x}, {_axis(op)})"


def _running(write: Write, op: Op, x: str) -> str:
    defn = _of(op)
    return f"running({op.name!r}, {x}, {_axis(op)}, {defn.exclusive}, {defn.reverse})"


def _gather(write: Write, op: Op, data: str, indices: str) -> str:
    return f"take({data}, {indices}, {_axis(op)})"


def _gather_elements(write: Write, op: Op, data: str, indices: str) -> str:
    return f"take_along({data}, {indices}, {_axis(op)})"


def _scatter_elements(write: Write, op: Op, data: str, indices: str, updates: str) -> str:
    return f"scattered({data}, {indices}, {updates}, {_axis(op)}, {_of(op).reduction!r})"


def _size(write: Write, op: Op) -> str:
    return f"tensor({write.size(_of(op).value)})"


def _iota(write: Write, op: Op) -> str:
    defn = _of(op)
    return f"arange({write.size(defn.length)}, dtype={write.dtype(defn.dtype)})"


def _top_k(write: Write, op: Op, x: str) -> str:
    defn = _of(op)
    return f"first_ones({x}, {write.size(defn.k)}, {_axis(op)}, {defn.largest})"


CALLS: Mapping[str, Call] = {
    **{name: _plain(name) for name in _SAME_NAME},
    **{name: _plain(other) for name, other in _OTHER_NAME.items()},
    **dict.fromkeys(("argmax", "argmin"), _place),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"), _running),
    **dict.fromkeys(("reshape", "squeeze", "unsqueeze"), _reshape),
    "cast": _cast,
    "clip_gradient": _itself,
    "concat": _concat,
    "constant": _constant,
    "expand": _expand,
    "gather": _gather,
    "gather_elements": _gather_elements,
    "gelu": _gelu,
    "iota": _iota,
    "linear": _linear,
    "matmul": _matmul,
    "pad": _pad,
    "reduce": _reduce,
    "scatter_elements": _scatter_elements,
    "size": _size,
    "slice": _slice,
    "softmax": _softmax,
    "top_k": _top_k,
    "transpose": _transpose,
}
