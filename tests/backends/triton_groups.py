"""Three groups whose generated source is kept, and how graphs are put together for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.defn import Array
from seqmix_ir.dims import dim
from seqmix_ir.graph import DimInfo, Graph, Module, Value
from seqmix_ir.types import Loc, TensorType

__all__ = ["GOLDEN_GROUPS", "check_source", "group_module", "of"]

B, S = dim("B"), dim("S")
_GOLDEN = Path(__file__).parent / "golden" / "triton"
Write = Callable[..., tuple[Value, ...]]


def of(types: Sequence[TensorType], write: Write, names: str) -> Module:
    """A module of one graph on parameters of these types."""
    params = [Value(t, n) for t, n in zip(types, names.split(), strict=True)]
    b = Builder(Loc("model.py:1"))
    results = write(b, *params)
    outputs = tuple(f"y{i}" for i in range(len(results)))
    graph = Graph("main", b.block(params, results), outputs, (DimInfo("B"), DimInfo("S")))
    return Module("group", (graph,))


def check_source(name: str, text: str) -> None:
    """Compare with the golden file; ``SEQMIX_UPDATE_GOLDEN=1`` writes it."""
    path = _GOLDEN / f"{name}.py.txt"
    if os.environ.get("SEQMIX_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text, f"{path.name}: SEQMIX_UPDATE_GOLDEN=1 writes what is found"


def _residual_norm() -> tuple[Module, Mapping[str, Array]]:
    """The sum of two branches and its norm, both of which are read later."""

    def write(b: Builder, x: Value, y: Value, weight: Value) -> tuple[Value, ...]:
        total = b(ops.Add(), x, y)
        return total, b(ops.RmsNorm(1e-5), total, weight)

    rows, weight = TensorType("f32", (B, S, 6)), TensorType("f32", (6,))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype("f4") for s in ((2, 3, 6), (2, 3, 6), (6,))]
    return of([rows, rows, weight], write, "x y weight"), dict(
        zip(("x", "y", "weight"), arrays, strict=True)
    )


def _soft_capped_heads() -> tuple[Module, Mapping[str, Array]]:
    """Gates of heads: split off a wide row, capped, put in front of the sequence."""

    def write(b: Builder, wide: Value, bias: Value) -> tuple[Value, ...]:
        gate = b(ops.Add(), b(ops.Slice(2, 4, 7), wide), bias)
        cap = ops.constant(b, 15.0, "f32")
        capped = b(ops.Mul(), cap, b(ops.Tanh(), b(ops.Div(), gate, cap)))
        turned = b(ops.Transpose((0, 2, 1)), capped)
        return (b(ops.Neg(), b(ops.Softplus(), b(ops.Neg(), turned))),)

    rng = np.random.default_rng(0)
    types = [TensorType("f32", (B, S, 7)), TensorType("f32", (3,))]
    arrays = {"wide": rng.standard_normal((2, 5, 7)), "bias": rng.standard_normal(3)}
    return of(types, write, "wide bias"), {n: a.astype("f4") for n, a in arrays.items()}


def _rotary_tables() -> tuple[Module, Mapping[str, Array]]:
    """Cosines and sines of positions times frequencies; padding counts as position 0."""

    def write(b: Builder, positions: Value, frequencies: Value) -> tuple[Value, ...]:
        clamped = b(ops.Maximum(), positions, ops.constant(b, 0, "i64"))
        place = b(ops.Unsqueeze((2,)), b(ops.Cast("f32"), clamped))
        angle = b(ops.Mul(), place, frequencies)
        return b(ops.Cos(), angle), b(ops.Sin(), angle)

    types = [TensorType("i64", (B, S)), TensorType("f32", (4,))]
    places = np.array([[-1, 0, 1], [2, 3, 4]])
    frequencies = np.geomspace(1.0, 0.01, 4).astype("f4")
    return of(types, write, "positions frequencies"), {
        "positions": places,
        "frequencies": frequencies,
    }


GOLDEN_GROUPS = {
    "residual_norm": _residual_norm,
    "soft_capped_heads": _soft_capped_heads,
    "rotary_tables": _rotary_tables,
}
group_module = SimpleNamespace(B=B, S=S, of=of, check_source=check_source)
