"""Functions of single elements that generated kernels call, where Triton has none of its own."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "expm1",
    "floor_div_float",
    "floor_div_int",
    "gelu",
    "gelu_tanh",
    "log1p",
    "mod_float",
    "mod_int",
    "round_even",
    "sigmoid",
    "sign",
    "silu",
    "softplus",
    "tanh",
]


@triton.jit
def log1p(x):
    """``log(1 + x)``; the quotient takes back what rounding ``1 + x`` has lost."""
    u = 1.0 + x
    small = u == 1.0
    exact = tl.log(u) * (x / tl.where(small, 1.0, u - 1.0))
    return tl.where(small, x, tl.where(u == float("inf"), u, exact))


@triton.jit
def expm1(x):
    """``exp(x) - 1``, by the same quotient."""
    u = tl.exp(x)
    plain = (u == 1.0) | (u - 1.0 == -1.0) | (u == float("inf"))
    exact = (u - 1.0) * (x / tl.where(plain, 1.0, tl.log(tl.where(plain, 2.0, u))))
    return tl.where(u == 1.0, x, tl.where(plain, u - 1.0, exact))


@triton.jit
def tanh(x):
    """The hyperbolic tangent, without overflow and exact near 0."""
    t = expm1(-2.0 * tl.abs(x))
    y = -t / (2.0 + t)
    return tl.where(x < 0.0, -y, y)


@triton.jit
def sigmoid(x):
    """``1 / (1 + exp(-x))``, without overflow."""
    t = tl.exp(-tl.abs(x))
    return tl.where(x < 0.0, t, 1.0) / (1.0 + t)


@triton.jit
def silu(x):
    """``x * sigmoid(x)``."""
    return x * sigmoid(x)


@triton.jit
def softplus(x):
    """``log(1 + exp(x))``, without overflow."""
    return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))


@triton.jit
def gelu(x):
    """``x * Phi(x)`` with the normal distribution function."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_tanh(x):
    """Its approximation by a hyperbolic tangent."""
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@triton.jit
def sign(x):
    """-1, 0 or 1, in the type of ``x``."""
    return tl.where(x > 0, 1, 0).to(x.dtype) - tl.where(x < 0, 1, 0).to(x.dtype)


@triton.jit
def round_even(x):
    """The nearest whole number; halves go to the even one."""
    below = tl.floor(x)
    gap = x - below
    odd = below - 2.0 * tl.floor(below * 0.5)
    up = (gap > 0.5) | ((gap == 0.5) & (odd != 0.0))
    return tl.where(up, below + 1.0, below)


@triton.jit
def floor_div_float(x, y):
    """``floor(x / y)``."""
    return tl.floor(x / y)


@triton.jit
def floor_div_int(x, y):
    """``x / y`` rounded down, whatever way the device rounds."""
    q = x // y
    left = x - q * y
    return tl.where((left != 0) & ((left < 0) != (y < 0)), q - 1, q)


@triton.jit
def mod_float(x, y):
    """The remainder, with the sign of ``y``."""
    return x - tl.floor(x / y) * y


@triton.jit
def mod_int(x, y):
    """The remainder, with the sign of ``y``."""
    left = x - (x // y) * y
    return tl.where((left != 0) & ((left < 0) != (y < 0)), left + y, left)
