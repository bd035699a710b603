"""Attention with a cache and rotary embedding, as captured models have them, in one ONNX node each.

B batch, H query heads, G key heads, S queries, P past, K key size, V value size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tests.backends.onnx_graphs import agree, compile_module, kinds_of, nodes_of, run_arrays

from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.defn import Array
from seqmix_ir.dims import dim
from seqmix_ir.graph import DimInfo, Graph, Module, Value
from seqmix_ir.types import DType, TensorType
from seqmix_onnxruntime.session import OnnxExecutable

B, S, P = dim("B"), dim("S"), dim("P")
DIMS = (DimInfo("B"), DimInfo("S"), DimInfo("P", min=0))
PASTS = [(1, 1, 0), (1, 1, 1), (2, 7, 0), (3, 2, 130), (1, 65, 3)]
"""(B, S, P) of the runs."""
LONG = (2, 541, 70)
"""One that goes by blocks, the last of them short."""


CAUSAL = ops.Attention()


@dataclass(frozen=True)
class Layer:
    """What one test builds: projections given, heads split, rotated, joined with the past."""

    H: int = 6
    G: int = 2
    K: int = 8
    V: int = 8
    half: int = 4
    interleaved: bool = False
    bias: tuple[Any, ...] | None = None
    dtype: DType = "f32"
    attention: ops.Attention = CAUSAL

    def module(self, layers: int = 1) -> Module:
        b, dtype = Builder(), self.dtype
        named = {
            "q": TensorType(dtype, (B, S, self.H * self.K)),
            "k": TensorType(dtype, (B, S, self.G * self.K)),
            "v": TensorType(dtype, (B, S, self.G * self.V)),
            "cos": TensorType(dtype, (B, S, self.half)),
            "sin": TensorType(dtype, (B, S, self.half)),
            "positions": TensorType("i64", (B, S)),
            "key_positions": TensorType("i64", (B, P)),
            "past_key": TensorType(dtype, (B, self.G, P, self.K)),
            "past_value": TensorType(dtype, (B, self.G, P, self.V)),
        }
        if self.bias is not None:
            named["bias"] = TensorType(dtype, self.bias)
        x = {name: Value(type, name) for name, type in named.items()}
        # Layers of another scale each, or they would be one.
        each = [replace(self.attention, scale=i / 2) for i in range(1, layers)]
        results = [v for one in (self.attention, *each) for v in self._layer(b, x, one)]
        names = tuple(f"{n}{i}" for i in range(layers) for n in ("y", "key", "value", "kept"))
        return Module("m", (Graph("main", b.block(list(x.values()), results), names, DIMS),))

    def _layer(
        self, b: Builder, x: dict[str, Value], attention: ops.Attention
    ) -> tuple[Value, ...]:
        def split(value: Value, heads: int) -> Value:
            size = value.type.shape[2]
            assert isinstance(size, int)
            apart = b(ops.Reshape((B, S, heads, size // heads)), value)
            return b(ops.Transpose((0, 2, 1, 3)), apart)

        def turn(value: Value) -> Value:
            return b(ops.Rotary(self.interleaved), value, x["cos"], x["sin"])

        q, k = turn(split(x["q"], self.H)), turn(split(x["k"], self.G))
        keys = b(ops.Concat(2), x["past_key"], k)
        values = b(ops.Concat(2), x["past_value"], split(x["v"], self.G))
        kept = b(ops.Concat(1), x["key_positions"], x["positions"])
        y = b(attention, q, keys, values, x["positions"], kept, x.get("bias"), None)
        together = b(ops.Transpose((0, 2, 1, 3)), y)
        return b(ops.Reshape((B, S, self.H * self.V)), together), keys, values, kept


def arrays(
    module: Module, sizes: tuple[int, int, int], *, padded: bool = False
) -> dict[str, Array]:
    """Inputs for ``main``; padding stands anywhere, in the past and among the new tokens."""
    rng = np.random.default_rng(sum(sizes))
    batch, new, past = sizes
    bound = dict(zip("BSP", sizes, strict=True))
    made: dict[str, Array] = {}
    for name, value in module.graph("main").inputs.items():
        shape = [
            s if isinstance(s, int) else bound.get(str(s), new + past) for s in value.type.shape
        ]
        made[name] = rng.standard_normal(shape).astype("f2" if value.type.dtype == "f16" else "f4")
    valid = rng.random((batch, past + new)) < (0.6 if padded else 2)
    positions = np.where(valid, valid.cumsum(1) - 1, -1)
    made["key_positions"], made["positions"] = positions[:, :past], positions[:, past:]
    return made


def check(layer: Layer, *, padded: bool = True) -> list[str]:
    """Compare at all sizes; the kinds of nodes that a short prompt runs."""
    module = layer.module()
    executable = compile_module(module)
    for sizes in (*PASTS, LONG):
        agree(module, executable, arrays(module, sizes, padded=padded))
    return short_kinds(executable)


def short_kinds(executable: OnnxExecutable) -> list[str]:
    """The kinds of nodes without bodies, but with the first branch of every choice."""
    found: list[str] = []
    for node in nodes_of(executable):
        branches = {a.name: a.g.node for a in node.attribute if a.name == "then_branch"}
        found += [n.op_type for n in branches.get("then_branch", [node])]
    return found


@pytest.mark.parametrize("padded", [False, True])
def test_a_layer_is_one_attention_and_two_rotations(padded: bool) -> None:
    kinds = check(Layer(), padded=padded)
    assert kinds.count("Attention") == 1
    assert kinds.count("RotaryEmbedding") == 2
    # One joins the key positions; the cache is joined by Attention, and heads are never moved.
    assert kinds.count("Concat") == 1
    assert not {"Reshape", "Transpose", "MatMul"} & set(kinds)


@pytest.mark.parametrize(
    "attention",
    [
        ops.Attention(window=5),
        ops.Attention(window=1),
        ops.Attention(causal=False),
        ops.Attention(causal=False, window=3),
        ops.Attention(scale=0.3),
    ],
    ids=repr,
)
def test_forms_of_attention(attention: ops.Attention) -> None:
    assert "Attention" in check(Layer(attention=attention))


@pytest.mark.parametrize(("H", "G"), [(6, 6), (5, 1), (1, 1), (9, 3)])
def test_groups_of_heads(H: int, G: int) -> None:
    check(Layer(H=H, G=G))


@pytest.mark.parametrize("V", [3, 16])
def test_values_of_another_size_than_keys(V: int) -> None:
    assert "Attention" in check(Layer(V=V))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("half", [1, 3, 4])
def test_rotations(interleaved: bool, half: int) -> None:
    assert "RotaryEmbedding" in check(Layer(interleaved=interleaved, half=half))


@pytest.mark.parametrize("bias", [(B, 6, S, P + S), (6, 1, 1), (1, 6, S, P + S), (S, 1)])
def test_a_bias_is_added(bias: tuple[Any, ...]) -> None:
    check(Layer(bias=bias))


def test_a_bias_may_hide_keys_per_head() -> None:
    layer = Layer(bias=(B, 6, S, P + S))
    module = layer.module()
    executable = compile_module(module)
    for sizes in PASTS:
        given = arrays(module, sizes, padded=True)
        hidden = np.random.default_rng(5).random(given["bias"].shape) < 0.7
        given["bias"] = np.where(hidden, -np.inf, given["bias"]).astype("f4")
        given["bias"][:, 2] = -np.inf
        agree(module, executable, given)
        y = run_arrays(executable, given)["y0"].reshape(*given["q"].shape[:2], layer.H, layer.V)
        assert (y[:, :, 2] == 0).all()


@pytest.mark.parametrize("window", [0, 70])
def test_many_queries_go_by_blocks(window: int) -> None:
    """Whether heads lie side by side or not, and with a past whose slots may be empty."""
    layer = Layer(attention=ops.Attention(window=window))
    assert kinds_of(compile_module(layer.module()))["Scan"] == 1
    q, k = (Value(TensorType("f32", (B, 2, size, 4)), str(size)) for size in (S, P))
    places = [Value(TensorType("i64", (B, size)), f"at_{size}") for size in (S, P)]
    b = Builder()
    y = b(ops.Attention(window=window), q, k, k, *places, None, None)
    block = b.block([q, k, *places], [y])
    module = Module("m", (Graph("main", block, ("y",), DIMS),))
    executable = compile_module(module)
    assert kinds_of(executable)["Scan"] == 1
    rng = np.random.default_rng(1)
    for new, slots in ((513, 700), (900, 3)):
        positions = np.where(rng.random((2, new + slots)) < 0.7, np.arange(new + slots), -1)
        given: dict[str, Any] = {
            "S": rng.standard_normal((2, 2, new, 4)).astype("f4"),
            "P": rng.standard_normal((2, 2, slots, 4)).astype("f4"),
            "at_S": rng.permuted(positions[:, slots:], axis=1),
            "at_P": rng.permuted(positions[:, -slots:], axis=1),
        }
        agree(module, executable, given)


def test_a_file_for_anybody_has_one_node() -> None:
    executable = compile_module(Layer().module(), contrib=False)
    kinds = kinds_of(executable)
    assert kinds["Attention"] == 1
    assert not {"If", "Scan"} & set(kinds)


@pytest.mark.parametrize("dtype", ["f16", "f64"])
def test_other_floats(dtype: DType) -> None:
    layer = Layer(dtype=dtype)
    module = layer.module()
    executable = compile_module(module)
    for sizes in (*PASTS, LONG):
        given = arrays(module, sizes, padded=True)
        if dtype == "f64":
            given = {n: a.astype("f8") if a.dtype == "f4" else a for n, a in given.items()}
        agree(module, executable, given)


def test_layers_share_one_mask() -> None:
    kinds = short_kinds(compile_module(Layer().module(layers=3)))
    assert kinds.count("Attention") == 3
    # Of positions; the other one asks for the length.
    assert kinds.count("LessOrEqual") == 2
    assert kinds.count("ReduceMax") == 1


def test_a_row_that_sees_nothing_is_zero() -> None:
    module = Layer().module()
    given = arrays(module, (2, 4, 3))
    given["positions"] = given["positions"].copy()
    given["positions"][0, 1:3] = -1
    y = run_arrays(compile_module(module), given)["y0"]
    assert np.isfinite(y).all()
    assert (y[0, 1:3] == 0).all()
    assert (np.abs(y[0, [0, 3]]).max(-1) > 0).all()


def test_a_cache_that_is_read_before_stays_a_concat() -> None:
    """An op before the attention needs the joined keys, which Attention would give too late."""
    b = Builder()
    q, k, past = (
        Value(TensorType("f32", (B, 2, size, 4)), name)
        for size, name in ((S, "q"), (S, "k"), (P, "past"))
    )
    positions = Value(TensorType("i64", (B, S)), "positions")
    kept = Value(TensorType("i64", (B, P + S)), "kept")
    keys = b(ops.Concat(2), past, k)
    scaled = b(ops.Mul(), keys, keys)
    y = b(ops.Attention(), q, scaled, keys, positions, kept, None, None)
    block = b.block([q, k, past, positions, kept], [y, keys])
    module = Module("m", (Graph("main", block, ("y", "keys"), DIMS),))
    executable = compile_module(module)
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {
        "q": rng.standard_normal((2, 2, 3, 4)).astype("f4"),
        "k": rng.standard_normal((2, 2, 3, 4)).astype("f4"),
        "past": rng.standard_normal((2, 2, 5, 4)).astype("f4"),
        "positions": np.tile(np.arange(5, 8), (2, 1)),
        "kept": np.tile(np.arange(8), (2, 1)),
    }
    agree(module, executable, given)
    assert "Concat" in [node.op_type for node in nodes_of(executable)]


def test_a_cache_that_is_read_after_comes_from_attention() -> None:
    """What evicts a window's cache reads the joined keys, and gets them from the same node."""
    module = Layer().module()
    graph = module.graph("main")
    b = Builder(ops=list(graph.block.ops))
    y, keys, values, kept = graph.block.results
    last = b(ops.Slice(2, P, P + S), keys)
    results = [y, last, values, kept]
    changed = Module("m", (graph.with_block(b.block(graph.block.params, results)),))
    executable = compile_module(changed)
    agree(changed, executable, arrays(changed, (2, 3, 4), padded=True))
    assert short_kinds(executable).count("Concat") == 1
