"""A bank of diagonal state spaces in simpler ops: in chunks of matrix products, and as a loop.

Inside a chunk of C tokens the outputs are a product with a Toeplitz matrix of the kernel; what the
state before the chunk adds, and what the chunk adds to the state, are products with tables of
powers of the decay. Only the states at the ends of chunks go through a loop. The tables depend on
the weights alone, so that a runtime computes them once.

B batch, S sequence, G state spaces, V inputs that share one of them, N complex modes, Q chunks of
C tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from seqmix_ir.builder import trace_block
from seqmix_ir.dims import Size, ceildiv, minimum_size
from seqmix_ir.errors import IRError
from seqmix_ir.ops.arithmetic import Add, FloorDiv, Maximum, Mul, Sub
from seqmix_ir.ops.cast import Cast
from seqmix_ir.ops.constants import Iota, constant, size_value
from seqmix_ir.ops.elementwise import Neg
from seqmix_ir.ops.index import Gather, GatherElements, ScatterElements
from seqmix_ir.ops.linear import Matmul
from seqmix_ir.ops.logic import GreaterEqual, Where
from seqmix_ir.ops.precision import narrow, wider_dtype
from seqmix_ir.ops.reduce import CumSum, Reduce
from seqmix_ir.ops.scan import Scan
from seqmix_ir.ops.segments import Concat, Pad, Slice
from seqmix_ir.ops.shape import Expand, Reshape, Squeeze, Transpose, Unsqueeze

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Op, Value
    from seqmix_ir.types import DType

__all__ = ["CHUNK", "chunk_state_space", "scan_state_space"]

CHUNK = 64
"""C: products within a chunk then cost as much as those with its state, for 32 modes."""

Pair: TypeAlias = "tuple[Value, Value]"


def scan_state_space(b: Builder, op: Op) -> tuple[Value, ...]:
    """A loop over the tokens."""
    x, decay, readout, state, valid = _operands(op)
    wide = wider_dtype(x.type.dtype)
    sequences = [narrow(b, x, wide)] + ([] if valid is None else [valid])
    constants = [*_halves(b, narrow(b, decay, wide)), *_halves(b, narrow(b, readout, wide))]
    carries = _halves(b, narrow(b, state, wide))
    slices = [s.type.with_shape((s.type.shape[0], *s.type.shape[2:])) for s in sequences]
    types = [*(c.type for c in carries), *slices, *(c.type for c in constants)]
    hints = "re im x" + " valid" * (valid is not None) + " decay_re decay_im out_re out_im"
    body = trace_block(types, _token, hints, op.loc)
    scan = Scan(2, len(sequences), 1)
    re, im, y = b.emit(scan, *carries, *sequences, *constants, body=body)
    return narrow(b, y, x.type.dtype), narrow(b, _joined(b, re, im), state.type.dtype)


def _token(b: Builder, re: Value, im: Value, x: Value, *rest: Value) -> tuple[Value, ...]:
    """One token; ``rest`` is its mask where there is one, and decay and readout by halves."""
    *valid, decay_re, decay_im, out_re, out_im = rest
    decay = (b(Unsqueeze((1,)), decay_re), b(Unsqueeze((1,)), decay_im))
    out = (b(Unsqueeze((1,)), out_re), b(Unsqueeze((1,)), out_im))
    turned = _product(b, decay, (re, im))
    token = b(Unsqueeze((3,)), b(Transpose((0, 2, 1)), x))
    new = (b(Add(), turned[0], token), turned[1])
    y = b(Reduce("sum", (3,), False), _product(b, out, new)[0])
    y = b(Transpose((0, 2, 1)), y)
    if not valid:
        return *new, y
    here = b(Unsqueeze((1, 2)), valid[0])
    y = b(Where(), here, y, constant(b, 0.0, y.type.dtype))
    here = b(Unsqueeze((3,)), here)
    return b(Where(), here, new[0], re), b(Where(), here, new[1], im), y


def chunk_state_space(b: Builder, op: Op) -> tuple[Value, ...]:
    """Chunks in parallel, and a short loop over their states.

    Padding moves behind the tokens of its row first. There it does no harm to outputs, and the
    state after the last token is taken from the chunk that this token stands in.
    """
    x, decay, readout, state, valid = _operands(op)
    B, S, V, G = x.type.shape
    wide, C, Q = wider_dtype(x.type.dtype), minimum_size(S, CHUNK), ceildiv(S, CHUNK)
    rows = None if valid is None else _Rows(b, valid)
    tokens = narrow(b, x, wide) if rows is None else rows.compacted(narrow(b, x, wide))
    cut = b(Reshape((B, Q, C, V, G)), b(Pad(1, 0, Q * C - S), tokens))
    u = b(Reshape((G, B * V * Q, C)), b(Transpose((4, 0, 3, 1, 2)), cut))
    tables = _Tables(b, decay, readout, wide, C)
    before = _states(b, tables, u, narrow(b, state, wide), Q)
    y = b(Matmul(), b(Reshape((G, B * V * Q, 2 * tables.modes)), before), tables.from_start)
    y = b(Reshape((G, B, V, Q * C)), b(Add(), b(Matmul(), u, tables.within), y))
    y = b(Transpose((1, 3, 2, 0)), b(Slice(3, 0, S), y))
    y = y if rows is None else rows.back(y)
    count = b(Expand((B,)), size_value(b, S, "i64")) if rows is None else rows.count
    last = _last(b, tables, b(Reshape((G, B, V, Q * C)), u), before, count)
    return narrow(b, y, x.type.dtype), narrow(b, last, state.type.dtype)


def _operands(op: Op) -> tuple[Value, Value, Value, Value, Value | None]:
    x, decay, readout, state, valid = op.operands
    if x is None or decay is None or readout is None or state is None:
        raise IRError(f"{op.loc}: '{op.name}' lacks one of its first four operands")
    return x, decay, readout, state, valid


class _Rows:
    """Where the tokens of each row go when padding moves behind them."""

    def __init__(self, b: Builder, valid: Value) -> None:
        self._b, self._valid = b, valid
        B, S = valid.type.shape
        one = constant(b, 1, "i64")
        ones = b(Cast("i64"), valid)
        self.count = b(Reduce("sum", (1,), False), ones)
        there = b(Sub(), b(CumSum(1), ones), one)
        behind = b(CumSum(1), b(Sub(), one, ones))
        behind = b(Sub(), b(Add(), behind, b(Unsqueeze((1,)), self.count)), one)
        self._slot = b(Where(), valid, there, behind)
        place = b(Expand((B, S)), b(Iota(S)))
        self._order = b(ScatterElements(1), place, self._slot, place)

    def compacted(self, x: Value) -> Value:
        """``x [B, S, V, G]`` with 0 behind the tokens of each row."""
        b, zero = self._b, constant(self._b, 0.0, x.type.dtype)
        real = b(Unsqueeze((2, 3)), self._valid)
        return self._moved(b(Where(), real, x, zero), self._order)

    def back(self, y: Value) -> Value:
        """``y [B, S, V, G]`` with every token where it was, and 0 at padding."""
        b, zero = self._b, constant(self._b, 0.0, y.type.dtype)
        return b(Where(), b(Unsqueeze((2, 3)), self._valid), self._moved(y, self._slot), zero)

    def _moved(self, x: Value, source: Value) -> Value:
        b, (B, S, V, G) = self._b, x.type.shape
        row = b(Mul(), b(Unsqueeze((1,)), b(Iota(B))), size_value(b, S, "i64"))
        # Whole tokens are moved: an index for each element of them would be slower by far.
        return b(Gather(0), b(Reshape((B * S, V, G)), x), b(Add(), source, row))


class _Tables:
    """What depends on the weights; 2N counts real parts before imaginary ones.

    ``powers [G, CHUNK + 1, 2 N]`` of the decay, from 0 on; ``within [G, C, C]`` from the inputs of
    a chunk to its outputs, ``from_start [G, 2 N, C]`` from the state before it to its outputs,
    ``to_end [G, C, 2 N]`` from its inputs to the state after it; ``whole``, the power of C.
    """

    def __init__(self, b: Builder, decay: Value, readout: Value, wide: DType, C: Size) -> None:
        self.modes = decay.type.shape[1]
        powers = _powers(b, _middle(b, decay))
        seen = _product(b, _middle(b, readout), powers)
        self.powers = narrow(b, b(Concat(2), *powers), wide)
        start = narrow(b, b(Concat(2), seen[0], b(Neg(), seen[1])), wide)
        start = b(Transpose((0, 2, 1)), b(Slice(1, 1, CHUNK + 1), start))
        self.from_start = b(Slice(2, 0, C), start)
        kernel = narrow(b, b(Reduce("sum", (2,), False, "f64"), seen[0]), wide)
        self.within = b(Slice(2, 0, C), b(Slice(1, 0, C), _toeplitz(b, kernel)))
        backwards = b(Sub(), constant(b, CHUNK - 1, "i64"), b(Iota(CHUNK)))
        self.to_end = b(Slice(1, CHUNK - C, CHUNK), b(Gather(1), self.powers, backwards))
        self.whole = _split(b, b(Slice(1, C, C + 1), self.powers), self.modes)


def _powers(b: Builder, decay: Pair) -> Pair:
    """``[G, CHUNK + 1, N]``: twice as many from those there are and the next one."""
    shape, dtype = decay[0].type.shape, decay[0].type.dtype
    one, zero = (b(Expand(shape), constant(b, value, dtype)) for value in (1.0, 0.0))
    powers, step = (one, zero), decay
    count = 1
    while count < CHUNK:
        more = _product(b, powers, step)
        powers = (b(Concat(1), powers[0], more[0]), b(Concat(1), powers[1], more[1]))
        step, count = _product(b, step, step), 2 * count
    return b(Concat(1), powers[0], step[0]), b(Concat(1), powers[1], step[1])


def _toeplitz(b: Builder, kernel: Value) -> Value:
    """``[G, CHUNK, CHUNK]`` from ``kernel [G, CHUNK + 1]``: row i, column j is tap j - i."""
    place = b(Iota(CHUNK))
    tap = b(Sub(), b(Unsqueeze((0,)), place), b(Unsqueeze((1,)), place))
    shifted = b(Add(), tap, constant(b, CHUNK - 1, "i64"))
    return b(Gather(1), b(Pad(1, CHUNK - 1, 0), kernel), shifted)


def _states(b: Builder, tables: _Tables, u: Value, state: Value, Q: Size) -> Value:
    """The state before each chunk, ``[G, B * V, Q, 2 N]``, from ``state [B, G, V, N, 2]``."""
    B, G, V, N, _ = state.type.shape
    state = b(Transpose((1, 0, 2, 3, 4)), state)
    first = [b(Reshape((G, B * V, N)), half) for half in _halves(b, state)]
    if Q == 1:
        return b(Unsqueeze((2,)), b(Concat(2), *first))
    added = b(Reshape((G, B * V, Q, 2 * N)), b(Matmul(), u, tables.to_end))
    types = [v.type for v in (*first, *first, *tables.whole)]
    body = trace_block(types, _pass_on, "re im added_re added_im whole_re whole_im", b.loc)
    sequences = _split(b, added, N)
    scanned = b.emit(Scan(2, 2, 2), *first, *sequences, *tables.whole, body=body)
    return b(Concat(3), scanned[2], scanned[3])


def _pass_on(
    b: Builder, re: Value, im: Value, added_re: Value, added_im: Value, *whole: Value
) -> tuple[Value, ...]:
    """The state after a chunk, then the one before it."""
    kept = _product(b, (whole[0], whole[1]), (re, im))
    return b(Add(), kept[0], added_re), b(Add(), kept[1], added_im), re, im


def _last(b: Builder, tables: _Tables, u: Value, before: Value, count: Value) -> Value:
    """The state ``[B, G, V, N, 2]`` after ``count [B]`` tokens, of ``u [G, B, V, Q * C]``.

    That is the state before the chunk of the last token, and the tokens of this chunk.
    """
    G, B, V, _ = u.type.shape
    Q, N2 = before.type.shape[2:]
    earlier = b(Sub(), count, constant(b, 1, "i64"))
    width = constant(b, CHUNK, "i64")
    chunk = b(FloorDiv(), b(Maximum(), earlier, constant(b, 0, "i64")), width)
    first = b(Mul(), chunk, width)
    window = _window(b, u, first, count, tables.to_end.type.shape[1])
    added = b(Matmul(), b(Reshape((G, B * V, window.type.shape[3])), window), tables.to_end)
    index = b(Expand((G, B, V, 1, N2)), b(Unsqueeze((0, 2, 3, 4)), chunk))
    start = b(GatherElements(3), b(Reshape((G, B, V, Q, N2)), before), index)
    power = b(Unsqueeze((2,)), b(Gather(1), tables.powers, b(Sub(), count, first)))
    start, added = b(Squeeze((3,)), start), b(Reshape((G, B, V, N2)), added)
    decay, h, new = (_split(b, x, tables.modes) for x in (power, start, added))
    kept = _product(b, decay, h)
    last = _joined(b, b(Add(), kept[0], new[0]), b(Add(), kept[1], new[1]))
    return b(Transpose((1, 0, 2, 3, 4)), last)


def _window(b: Builder, u: Value, first: Value, count: Value, C: Size) -> Value:
    """The C tokens up to ``count [B]``, ``[G, B, V, C]``, with 0 for those before ``first [B]``."""
    G, B, V, _ = u.type.shape
    place = b(Sub(), b(Iota(C)), size_value(b, C, "i64"))
    place = b(Add(), b(Unsqueeze((0,)), place), b(Unsqueeze((1,)), count))
    source = b(Unsqueeze((0, 2)), b(Maximum(), place, constant(b, 0, "i64")))
    tokens = b(GatherElements(3), u, b(Expand((G, B, V, C)), source))
    inside = b(GreaterEqual(), place, b(Unsqueeze((1,)), first))
    return b(Where(), b(Unsqueeze((0, 2)), inside), tokens, constant(b, 0.0, u.type.dtype))


def _split(b: Builder, x: Value, N: Size) -> Pair:
    """The two halves of the last axis."""
    axis = x.type.rank - 1
    return b(Slice(axis, 0, N), x), b(Slice(axis, N, 2 * N), x)


def _halves(b: Builder, x: Value) -> Pair:
    """Real and imaginary parts of ``x [.., 2]``."""
    axis = x.type.rank - 1
    parts = (b(Slice(axis, i, i + 1), x) for i in range(2))
    re, im = (b(Squeeze((axis,)), part) for part in parts)
    return re, im


def _middle(b: Builder, x: Value) -> Pair:
    """``[G, N, 2]`` as two of ``[G, 1, N]``."""
    re, im = _halves(b, x)
    return b(Unsqueeze((1,)), re), b(Unsqueeze((1,)), im)


def _joined(b: Builder, re: Value, im: Value) -> Value:
    axis = re.type.rank
    return b(Concat(axis), b(Unsqueeze((axis,)), re), b(Unsqueeze((axis,)), im))


def _product(b: Builder, x: Pair, y: Pair) -> Pair:
    """Of complex numbers."""
    re = b(Sub(), b(Mul(), x[0], y[0]), b(Mul(), x[1], y[1]))
    return re, b(Add(), b(Mul(), x[0], y[1]), b(Mul(), x[1], y[0]))
