"""A bank of diagonal state spaces as an op of the IR.

B batch, S sequence, G state spaces, V inputs that share one of them, N complex modes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from seqmix_gated_conv.state_space_forms import chunk_state_space, scan_state_space
from seqmix_ir.defn import Array, Decomposition, Example, OpDef, Run, op
from seqmix_ir.errors import IRError
from seqmix_ir.ops.precision import accumulator, wider_dtype
from seqmix_ir.ops.rules import expect_dtype, expect_rank, expect_shape
from seqmix_ir.types import FLOATS, TensorType

__all__ = ["OPS", "StateSpace"]


@op
class StateSpace(OpDef):
    """``h_t = decay h_{t-1} + x_t`` and ``y_t = Re(sum_n readout_n h_{t,n})``, complex, per input.

    ``x [B,S,V,G]``, ``decay`` and ``readout [G,N,2]`` (real and imaginary parts), ``state
    [B,G,V,N,2]`` -> ``y [B,S,V,G]`` and the next state. Where ``valid [B,S]`` is false, y is 0 and
    the state stays as it is. ``decay`` and ``readout`` may be float64 beside anything: the powers
    of a decay near 1 are taken in their dtype. The state may be float32 beside a 16-bit x, and
    all sums are float32 at least.
    """

    name = "gated_conv.state_space"
    operands = ("x", "decay", "readout", "state", "valid?")
    results = ("y", "next_state")

    def infer(
        self,
        x: TensorType,
        decay: TensorType,
        readout: TensorType,
        state: TensorType,
        valid: TensorType | None,
    ) -> tuple[TensorType, ...]:
        expect_rank("x", x, 4, "[B, S, V, G]")
        expect_dtype("x", x, FLOATS)
        B, S, V, G = x.shape
        if S == 0:
            raise IRError(f"'x' is {x}: there are no steps, expected at least one")
        expect_rank("decay", decay, 3, "[G, N, 2]")
        N = decay.shape[1]
        wide = wider_dtype(x.dtype)
        for name, pair in (("decay", decay), ("readout", readout)):
            expect_dtype(name, pair, {wide, "f64"})
            expect_shape(name, pair, (G, N, 2), f"'x' is {x}, 'decay' is {decay}")
        expect_dtype("state", state, {x.dtype, wide})
        expect_shape("state", state, (B, G, V, N, 2), f"'x' is {x}, 'decay' is {decay}")
        if valid is not None:
            expect_dtype("valid", valid, ("bool",))
            expect_shape("valid", valid, (B, S), f"'x' is {x}")
        return x, state

    def evaluate(
        self,
        run: Run,
        x: Array,
        decay: Array,
        readout: Array,
        state: Array,
        valid: Array | None,
    ) -> tuple[Array, ...]:
        wide = accumulator(run, x)
        rate = (decay[..., 0] + 1j * decay[..., 1])[None, :, None]
        out = (readout[..., 0] + 1j * readout[..., 1])[None, :, None]
        h = state[..., 0].astype(wide) + 1j * state[..., 1].astype(wide)
        y = np.zeros(x.shape, wide)
        for t in range(x.shape[1]):
            new = rate * h + x[:, t].swapaxes(1, 2)[..., None]
            here = np.ones(len(x), bool) if valid is None else valid[:, t]
            h = np.where(here[:, None, None, None], new, h)
            read = (out * h).real.sum(-1).swapaxes(1, 2)
            y[:, t] = np.where(here[:, None, None], read, 0)
        return y, np.stack([h.real, h.imag], -1).astype(np.result_type(wide, state.dtype))

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"chunkwise": chunk_state_space, "recurrent": scan_state_space}

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        """One token, less than a chunk, several chunks; with padding and without."""
        return [
            _example(cls(), rng, (2, 1, 3, 1, 4), padded=True),
            _example(cls(), rng, (2, 7, 2, 4, 3), padded=True),
            _example(cls(), rng, (1, 65, 3, 1, 2), padded=False),
            _example(cls(), rng, (3, 150, 1, 2, 3), padded=True),
        ]


def _example(
    defn: StateSpace, rng: np.random.Generator, sizes: tuple[int, ...], padded: bool
) -> Example:
    """Slow and fast modes, of which some turn by half a circle in every step."""
    B, S, G, V, N = sizes
    size, angle = np.exp(-rng.exponential(0.2, (G, N))), rng.uniform(0, np.pi, (G, N))
    decay = np.stack([size * np.cos(angle), size * np.sin(angle)], -1)
    valid = rng.uniform(size=(B, S)) < 0.6 if padded else None
    x, readout = rng.normal(size=(B, S, V, G)), rng.normal(size=(G, N, 2))
    # These stay as wide as a state should be when x is 16-bit.
    pairs = (decay, readout, rng.normal(size=(B, G, V, N, 2)))
    return Example(defn, (x, *(pair.astype(np.float32) for pair in pairs), valid))


OPS: tuple[type[OpDef], ...] = (StateSpace,)
