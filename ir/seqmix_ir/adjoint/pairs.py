"""Rules of functions of two elements and of choice; sums undo the broadcast."""

from __future__ import annotations

from seqmix_ir import ops
from seqmix_ir.adjoint.table import number, rule, sum_to
from seqmix_ir.builder import Builder
from seqmix_ir.graph import Op, Value

__all__: list[str] = []


def _to_operands(
    b: Builder, op: Op, dx: Value | None, dy: Value | None
) -> tuple[Value | None, ...]:
    """Each cotangent summed over the axes along which its operand was repeated."""
    return tuple(
        None if d is None else sum_to(b, d, operand.type.shape)
        for d, operand in zip((dx, dy), op.values, strict=True)
    )


@rule(ops.Add)
def _add(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    return _to_operands(b, op, g, g)


@rule(ops.Sub)
def _sub(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    return _to_operands(b, op, g, b(ops.Neg(), g))


@rule(ops.Mul)
def _mul(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    x, y = op.values
    return _to_operands(b, op, b(ops.Mul(), g, y), b(ops.Mul(), g, x))


@rule(ops.Div)
def _div(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    """``1 / y`` and ``-z / y``: factors that are known before ``g`` is."""
    _, y = op.values
    one = b(ops.Reciprocal(), y)
    slope = b(ops.Neg(), b(ops.Mul(), op.results[0], one))
    return _to_operands(b, op, b(ops.Mul(), g, one), b(ops.Mul(), g, slope))


@rule(ops.Pow)
def _pow(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    """``y x^(y - 1)``, 0 where y is; ``z log x``, 0 where x is and y is not below."""
    x, y = op.values
    zero, one = number(b, x, 0.0), number(b, x, 1.0)
    power = b(ops.Mul(), y, b(ops.Pow(), x, b(ops.Sub(), y, one)))
    of_x = b(ops.Where(), b(ops.Equal(), y, zero), zero, power)
    nothing = b(ops.And(), b(ops.Equal(), x, zero), b(ops.GreaterEqual(), y, zero))
    log = b(ops.Log(), b(ops.Where(), nothing, one, x))
    of_y = b(ops.Where(), nothing, zero, b(ops.Mul(), op.results[0], log))
    return _to_operands(b, op, b(ops.Mul(), g, of_x), b(ops.Mul(), g, of_y))


def _winner(b: Builder, wins: Value, ties: Value, like: Value) -> Value:
    """1 for the operand that wins, a half where both do."""
    one, half, zero = (number(b, like, v) for v in (1.0, 0.5, 0.0))
    return b(ops.Where(), wins, one, b(ops.Where(), ties, half, zero))


@rule(ops.Maximum, ops.Minimum)
def _extremum(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    x, y = op.values
    first, second = (x, y) if isinstance(op.defn, ops.Maximum) else (y, x)
    ties = b(ops.Equal(), x, y)
    of_x = _winner(b, b(ops.Greater(), first, second), ties, x)
    of_y = _winner(b, b(ops.Less(), first, second), ties, x)
    return _to_operands(b, op, b(ops.Mul(), g, of_x), b(ops.Mul(), g, of_y))


@rule(ops.Mod)
def _mod(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    x, y = op.values
    whole = b(ops.Neg(), b(ops.FloorDiv(), x, y))
    return _to_operands(b, op, g, b(ops.Mul(), g, whole))


@rule(ops.FloorDiv)
def _floor_div(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    return None, None


@rule(ops.Where)
def _where(b: Builder, op: Op, g: Value) -> tuple[Value | None, ...]:
    condition, x, y = op.values
    zero = number(b, g, 0.0)
    dx, dy = b(ops.Where(), condition, g, zero), b(ops.Where(), condition, zero, g)
    return None, sum_to(b, dx, x.type.shape), sum_to(b, dy, y.type.shape)
