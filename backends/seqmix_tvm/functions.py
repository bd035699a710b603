"""Functions of one or two numbers as expressions; those that vectorize are written out in float32.

Each takes and gives numbers of one type. Errors of the float32 forms are a few units in the last
place; the coefficients are those of the Taylor series where a reduced argument is small enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from seqmix_tvm import tvm_api as tvm

__all__ = [
    "addressed",
    "divided",
    "erf",
    "exp",
    "floor_mod",
    "from_integer",
    "from_libm",
    "is_nan",
    "larger",
    "like",
    "named",
    "naming",
    "nan",
    "negative",
    "power",
    "reciprocal",
    "sigmoid",
    "sign",
    "smaller",
    "softplus",
    "tanh",
]

_BIND: ContextVar[Callable[[tvm.Expr], tvm.Expr]] = ContextVar("bind")
_LIBRARY: ContextVar[bool] = ContextVar("library", default=False)

_BITS = {"float32": "int32", "float64": "int64"}
_SUFFIX = {"float32": "f", "float64": ""}
_LN2_HIGH = 0.693145751953125
_LN2_LOW = math.log(2) - _LN2_HIGH
_LARGEST = 88.72283
_SMALLEST = -87.33654


@contextmanager
def naming(bind: Callable[[tvm.Expr], tvm.Expr], library: bool = False) -> Iterator[None]:
    """Where functions give names to what they use more than once: the statements of a kernel.

    TVM has an expression for that too, but its passes refuse a name that they meet twice. With
    ``library`` functions are those of C's library: on a GPU these are as fast as any other.
    """
    token, other = _BIND.set(bind), _LIBRARY.set(library)
    try:
        yield
    finally:
        _BIND.reset(token)
        _LIBRARY.reset(other)


def named(value: tvm.Expr) -> tvm.Expr:
    """A value that is computed once, however often it is used."""
    return _BIND.get()(value)


def addressed(value: tvm.Expr) -> tvm.Expr:
    """A value whose bits can be read as another type: in CUDA C it must lie somewhere."""
    return named(value) if _LIBRARY.get() else value


def like(value: float, x: tvm.Expr) -> tvm.Expr:
    """A number of the type of ``x``."""
    dtype = tvm.dtype_of(x)
    if dtype.startswith("float"):
        return nan(dtype) if value != value else tvm.floating(value, dtype)
    return tvm.integer(int(value), dtype)


def nan(dtype: str) -> tvm.Expr:
    """A NaN."""
    if dtype == "float64":
        return tvm.reinterpret(dtype, addressed(tvm.integer(0x7FF8 << 48, "int64")))
    return tvm.reinterpret(dtype, addressed(tvm.integer(0x7FC00000, "int32")))


def is_nan(x: tvm.Expr) -> tvm.Expr:
    """Whether a float is no number; written on its bits, where nothing simplifies it away."""
    x = addressed(x)
    if tvm.dtype_of(x) == "float64":
        bits = tvm.reinterpret("int64", x) & tvm.integer((1 << 63) - 1)
        return bits > tvm.integer(0x7FF << 52)
    bits = tvm.reinterpret("int32", x) & tvm.integer(0x7FFFFFFF, "int32")
    return bits > tvm.integer(0x7F800000, "int32")


def from_integer(dtype: str, x: tvm.Expr) -> tvm.Expr:
    """An integer as a float; by way of its bits, so that TVM knows no bounds of it.

    Where it has bounds of two floats, it takes their quotient for one of integers.
    """
    made = addressed(tvm.cast(dtype, x))
    bits = None if _LIBRARY.get() else _BITS.get(dtype)
    return made if bits is None else tvm.reinterpret(dtype, tvm.reinterpret(bits, made))


def larger(x: tvm.Expr, y: tvm.Expr) -> tvm.Expr:
    """The larger of two; NaN where either is."""
    if not tvm.dtype_of(x).startswith("float"):
        return tvm.maximum(x, y)
    x, y = named(x), named(y)
    return tvm.select(is_nan(x), x, tvm.select(x > y, x, y))


def smaller(x: tvm.Expr, y: tvm.Expr) -> tvm.Expr:
    """The smaller of two; NaN where either is."""
    if not tvm.dtype_of(x).startswith("float"):
        return tvm.minimum(x, y)
    x, y = named(x), named(y)
    return tvm.select(is_nan(x), x, tvm.select(x < y, x, y))


def exp(x: tvm.Expr) -> tvm.Expr:
    """``e ** x``; what is too small for a normal number is 0."""
    if _LIBRARY.get():
        return from_libm("exp", x)
    if tvm.dtype_of(x) != "float32":
        return tvm.call("exp", x)
    x = named(x)
    inside = named(tvm.minimum(tvm.maximum(x, like(_SMALLEST, x)), like(_LARGEST, x)))
    whole = named(tvm.call("floor", inside * like(1 / math.log(2), x) + like(0.5, x)))
    rest = named(inside - whole * like(_LN2_HIGH, x) - whole * like(_LN2_LOW, x))
    value = like(1 / math.factorial(7), x)
    for degree in range(6, -1, -1):
        value = value * rest + like(1 / math.factorial(degree), x)
    # In two steps: 128 is no exponent of a float.
    exponent = named(tvm.cast("int32", whole))
    half = named(exponent >> tvm.integer(1, "int32"))
    value = value * _power_of_two(half) * _power_of_two(exponent - half)
    value = tvm.select(x > like(_LARGEST, x), like(math.inf, x), value)
    value = tvm.select(x < like(_SMALLEST, x), like(0, x), value)
    return tvm.select(is_nan(x), x, value)


def _power_of_two(exponent: tvm.Expr) -> tvm.Expr:
    biased = exponent + tvm.integer(127, "int32")
    return tvm.reinterpret("float32", biased << tvm.integer(23, "int32"))


def tanh(x: tvm.Expr) -> tvm.Expr:
    """The hyperbolic tangent, exact near 0 too."""
    if _LIBRARY.get():
        return from_libm("tanh", x)
    if tvm.dtype_of(x) != "float32":
        return tvm.extern(tvm.dtype_of(x), "tanh", x)
    x = named(x)
    size, square = named(tvm.absolute(x)), named(x * x)
    far = named(like(1, x) - like(2, x) / (exp(size + size) + like(1, x)))
    near = like(-1382 / 155925, x)
    for factor in (62 / 2835, -17 / 315, 2 / 15, -1 / 3):
        near = near * square + like(factor, x)
    signed = tvm.select(x < like(0, x), like(0, x) - far, far)
    return tvm.select(size < like(0.35, x), x + x * square * near, signed)


def sigmoid(x: tvm.Expr) -> tvm.Expr:
    """``1 / (1 + exp(-x))``; an overflow of the exponential is a correct 0."""
    one = like(1, x)
    return one / (one + exp(like(0, x) - x))


def negative(x: tvm.Expr) -> tvm.Expr:
    """``-x``; the negative of 0 is -0."""
    if not tvm.dtype_of(x).startswith("float"):
        return like(0, x) - x
    return x * like(-1, x)


def from_libm(name: str, x: tvm.Expr) -> tvm.Expr:
    """A function of C's library, by its name for doubles."""
    dtype = tvm.dtype_of(x)
    return tvm.extern(dtype, name + _SUFFIX[dtype], x)


def softplus(x: tvm.Expr) -> tvm.Expr:
    """``log(1 + exp(x))``, without overflow."""
    small = exp(like(0, x) - tvm.absolute(x))
    return larger(x, like(0, x)) + _log1p_to_one(small)


def _log1p_to_one(x: tvm.Expr) -> tvm.Expr:
    """``log(1 + x)`` for x from 0 to 1: ``2 atanh(x / (2 + x))``, whose argument is at most 1/3."""
    if tvm.dtype_of(x) != "float32" or _LIBRARY.get():
        return from_libm("log1p", x)
    x = named(x)
    ratio = named(x / (x + like(2, x)))
    square = named(ratio * ratio)
    series = like(2 / 15, x)
    for degree in (13, 11, 9, 7, 5, 3, 1):
        series = series * square + like(2 / degree, x)
    return ratio * series


def erf(x: tvm.Expr) -> tvm.Expr:
    """The Gauss error function."""
    return from_libm("erf", x)


def power(x: tvm.Expr, y: tvm.Expr) -> tvm.Expr:
    """``x ** y``."""
    return tvm.extern(tvm.dtype_of(x), f"pow{_SUFFIX[tvm.dtype_of(x)]}", x, y)


def reciprocal(x: tvm.Expr) -> tvm.Expr:
    """``1 / x``."""
    return like(1, x) / x


def divided(x: tvm.Expr, y: tvm.Expr) -> tvm.Expr:
    """``floor(x / y)``."""
    if tvm.dtype_of(x).startswith("float"):
        return tvm.call("floor", x / y)
    return tvm.call("floordiv", x, y)


def floor_mod(x: tvm.Expr, y: tvm.Expr) -> tvm.Expr:
    """The remainder, with the sign of ``y``."""
    dtype = tvm.dtype_of(x)
    if not dtype.startswith("float"):
        return tvm.call("floormod", x, y)
    rest = tvm.extern(dtype, f"fmod{_SUFFIX[dtype]}", x, y)
    zero = like(0, x)
    opposed = tvm.either(tvm.both(rest < zero, y > zero), tvm.both(rest > zero, y < zero))
    return tvm.select(opposed, rest + y, rest)


def sign(x: tvm.Expr) -> tvm.Expr:
    """-1, 0 or 1; NaN of NaN."""
    zero = like(0, x)
    below = tvm.select(x < zero, like(-1, x), x if tvm.dtype_of(x).startswith("float") else zero)
    return tvm.select(x > zero, like(1, x), below)
