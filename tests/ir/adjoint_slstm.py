"""An sLSTM as a loop of the IR, and its backward pass written out by hand.

H heads, B batch, D width of a head, S sequence.
"""

from __future__ import annotations

import numpy as np
from tests.ir.adjoint_cases import Loop

from seqmix_ir import ops
from seqmix_ir.builder import Builder, trace_block
from seqmix_ir.defn import Array
from seqmix_ir.graph import Value
from seqmix_ir.ops import Scan
from seqmix_ir.types import TensorType

__all__ = ["CLIP", "B", "D", "H", "S", "by_the_equations", "f64", "slstm_loop"]

H, B, D, S = 2, 3, 4, 6
CLIP = 0.15


def f64(*shape: int) -> TensorType:
    return TensorType("f64", shape)


def slstm_body(
    b: Builder, h: Value, c: Value, n: Value, m: Value, gates: Value, matrix: Value
) -> tuple[Value, ...]:
    """One token, with the clip of what flows through R to h."""
    fed = b(ops.ClipGradient(CLIP), h)
    pre = b(ops.Add(), b(ops.Matmul(), fed, matrix), gates)
    i, f, z, o = (b(ops.Slice(2, g * D, (g + 1) * D), pre) for g in range(4))
    kept = b(ops.Sub(), m, b(ops.Softplus(), b(ops.Neg(), f)))
    new_m = b(ops.Maximum(), i, kept)
    i, f = b(ops.Exp(), b(ops.Sub(), i, new_m)), b(ops.Exp(), b(ops.Sub(), kept, new_m))
    new_c = b(ops.Add(), b(ops.Mul(), f, c), b(ops.Mul(), i, b(ops.Tanh(), z)))
    new_n = b(ops.Add(), b(ops.Mul(), f, n), i)
    new_h = b(ops.Mul(), b(ops.Sigmoid(), o), b(ops.Div(), new_c, new_n))
    return new_h, new_c, new_n, new_m, new_h


def slstm_loop(seed: int = 0) -> Loop:
    rng = np.random.default_rng(seed)
    state = f64(H, B, D)
    body = trace_block(
        [state] * 4 + [f64(H, B, 4 * D), f64(H, D, 4 * D)], slstm_body, "h c n m gates R"
    )
    types = [state] * 4 + [f64(S, H, B, 4 * D), f64(H, D, 4 * D)]
    arrays = [rng.standard_normal(t.shape) for t in types]
    arrays[2] = 1 + rng.random((H, B, D))
    return Loop.of(Scan(4, 1, 0), types, body, arrays)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def by_the_equations(arrays: list[Array], dy: Array) -> dict[str, Array]:
    """Equations 41 to 51 of Beck et al. (2024), appendix A, for a loss of y alone.

    The stabiliser m is a constant there (equation 46 has no path through it), which changes no
    gradient: y does not depend on it.
    """
    h, c, n, m, x, R = arrays
    steps = []
    for t in range(S):
        pre = np.einsum("hbd,hde->hbe", h, R) + x[t]
        i_, f_, z_, o_ = np.split(pre, 4, -1)
        log_f = -np.logaddexp(0, -f_)
        new_m = np.maximum(i_, log_f + m)
        i, f = np.exp(i_ - new_m), np.exp(log_f + m - new_m)
        z, o = np.tanh(z_), sigmoid(o_)
        new_c, new_n = f * c + i * z, f * n + i
        steps.append((h, c, n, i, f, f_, z, o, new_c, new_n))
        h, c, n, m = o * new_c / new_n, new_c, new_n, new_m
    dh, dc, dn = (np.zeros_like(h) for _ in range(3))
    d_x, d_R = np.zeros_like(x), np.zeros_like(R)
    for t in reversed(range(S)):
        h, c, n, i, f, f_, z, o, new_c, new_n = steps[t]
        dh = dh + dy[t]
        dc = dc + dh * o / new_n
        dn = dn - dh * o * new_c / new_n**2
        d_pre = np.concatenate(
            [
                (dc * z + dn) * i,
                (dc * c + dn * n) * f * sigmoid(-f_),
                dc * i * (1 - z**2),
                dh * new_c / new_n * o * (1 - o),
            ],
            -1,
        )
        d_x[t] = d_pre
        d_R += np.einsum("hbd,hbe->hde", h, d_pre)
        dh = np.clip(np.einsum("hbe,hde->hbd", d_pre, R), -CLIP, CLIP)
        dc, dn = dc * f, dn * f
    return {"h": dh, "c": dc, "n": dn, "gates": d_x, "R": d_R}
