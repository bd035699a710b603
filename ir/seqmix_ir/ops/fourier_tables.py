"""Tables of cosines and sines, computed in the graph so that they fit any length.

n samples of one period, M = n // 2 + 1 frequencies of its half spectrum.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from seqmix_ir.dims import Size, floordiv
from seqmix_ir.ops.arithmetic import Div, Mod, Mul, Sub
from seqmix_ir.ops.constants import Iota, constant, size_value
from seqmix_ir.ops.elementwise import Cos, Sin
from seqmix_ir.ops.logic import Equal, Greater, Or, Where
from seqmix_ir.ops.precision import narrow
from seqmix_ir.ops.shape import Unsqueeze
from seqmix_ir.types import DType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Value

__all__ = ["cosines_and_sines", "spectrum_weights"]


def cosines_and_sines(
    b: Builder, rows: Value, columns: Value, period: Size, dtype: DType
) -> tuple[Value, Value]:
    """Cos and sin of ``2 pi rows[i] columns[j] / period``, each ``[R, C]``; both i64 vectors."""
    n = size_value(b, period, "i64")
    turns = b(Mul(), b(Unsqueeze((1,)), rows), b(Unsqueeze((0,)), columns))
    # Exact integers keep the angle below half a turn, where its rounding is smallest.
    turns = b(Mod(), turns, n)
    over = b(Greater(), b(Mul(), turns, constant(b, 2, "i64")), n)
    turns = b(Where(), over, b(Sub(), turns, n), turns)
    share = b(Div(), narrow(b, turns, dtype), size_value(b, period, dtype))
    angle = b(Mul(), share, constant(b, 2 * math.pi, dtype))
    return b(Cos(), angle), b(Sin(), angle)


def spectrum_weights(b: Builder, n: Size, dtype: DType) -> Value:
    """How often each frequency of a half spectrum stands in the whole: 2, but 1 at its ends."""
    k, size = b(Iota(floordiv(n, 2) + 1)), size_value(b, n, "i64")
    first = b(Equal(), k, constant(b, 0, "i64"))
    middle = b(Equal(), b(Mul(), k, constant(b, 2, "i64")), size)
    one, two = constant(b, 1.0, dtype), constant(b, 2.0, dtype)
    return b(Where(), b(Or(), first, middle), one, two)
