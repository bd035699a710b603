"""Products and attention of the tvm backend at sizes around those of tiles, panels and blocks."""

from __future__ import annotations

import math
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tests.backends.needs_tvm  # noqa: F401  # skips
from safetensors.numpy import load_file
from tests.backends.graphs import run_arrays
from tests.backends.tvm_graphs import agree, compile_module

from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.defn import Array
from seqmix_ir.dims import dim, evaluate_size
from seqmix_ir.graph import DimInfo, Graph, Module, Value
from seqmix_ir.interpret import NUMPY_DTYPES
from seqmix_ir.types import DType, TensorType
from seqmix_tvm.session import TvmExecutable

B, S, P = dim("B"), dim("S"), dim("P")
MANY = (1, 2, 5, 6, 7, 12, 13, 95, 97, 200)
"""Rows: fewer than a tile, a tile, some left over, several blocks."""

SHAPES = ((16, 1), (5, 7), (100, 33), (192, 64), (272, 40))
"""Outputs and terms: a panel, less than one, panels in fours and fives, and part of one."""


def products(dtype: DType, shapes: tuple[tuple[int, int], ...], rows: Any = S) -> Module:
    """``linear`` of one input per shape, half of them with a bias, gelu and a residual."""
    b = Builder()
    inputs, results = [], []
    for n, (N, K) in enumerate(shapes):
        x = Value(TensorType(dtype, (rows, K)), f"x{n}")
        inputs.append(x)
        weight = b(ops.Weight(f"w{n}", TensorType(dtype, (N, K))))
        if n % 2:
            results.append(b(ops.Linear(), x, weight, None))
            continue
        bias = b(ops.Weight(f"b{n}", TensorType(dtype, (N,))))
        rest = Value(TensorType(dtype, (rows, N)), f"rest{n}")
        inputs.append(rest)
        made = b(ops.Gelu(), b(ops.Linear(), x, weight, bias))
        results.append(b(ops.Add(), made, rest))
    names = tuple(f"y{n}" for n in range(len(results)))
    sizes = (DimInfo("S"),) if rows is S else ()
    return Module("m", (Graph("main", b.block(inputs, results), names, sizes),))


def numbers(module: Module, sizes: dict[str, int], seed: int = 0) -> dict[str, Array]:
    """Normal numbers for every input."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal([evaluate_size(s, sizes) for s in v.type.shape]).astype(
            NUMPY_DTYPES[v.type.dtype]
        )
        for name, v in module.graph("main").inputs.items()
    }


def weights_of(module: Module) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    found = {}
    for op in module.graph("main").block.ops:
        if isinstance(op.defn, ops.Weight):
            type = op.defn.type
            array = rng.standard_normal([int(str(s)) for s in type.shape]) / 4
            found[op.defn.key] = array.astype(NUMPY_DTYPES[type.dtype])
    return found


def test_products_at_every_kind_of_size() -> None:
    module = products("f32", SHAPES)
    weights = weights_of(module)
    executable = compile_module(module, weights)
    for count in MANY:
        agree(module, executable, numbers(module, {"S": count}), weights)


@pytest.mark.parametrize("rows", [3, 20])
def test_products_of_rows_that_are_known(rows: int) -> None:
    module = products("f32", ((37, 19),), rows)
    weights = weights_of(module)
    agree(module, compile_module(module, weights), numbers(module, {}), weights)


@pytest.mark.full
def test_blocks_are_small_where_rows_are_long() -> None:
    module = products("f32", ((48, 3000),))
    weights = weights_of(module)
    executable = compile_module(module, weights)
    for count in (4, 25, 60):
        inputs = numbers(module, {"S": count})
        wide = {k: v.astype("f8") for k, v in {**inputs, **weights}.items()}
        sums = wide["x0"] @ wide["w0"].T + wide["b0"]
        normal = np.vectorize(lambda x: (1 + math.erf(x / math.sqrt(2))) / 2)
        wanted = sums * normal(sums) + wide["rest0"]
        found = run_arrays(executable, inputs)["y0"]
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize(
    "dtype", ["bf16", *(pytest.param(d, marks=pytest.mark.full) for d in ("f16", "f64"))]
)
def test_products_of_other_floats(dtype: DType) -> None:
    module = products(dtype, ((100, 33), (64, 48)))
    weights = weights_of(module)
    executable = compile_module(module, weights)
    for count in (1, 7, 97):
        agree(module, executable, numbers(module, {"S": count}), weights)


def narrow(kind: str) -> tuple[Module, dict[str, Array], Array]:
    """A product whose weight is widened from fewer bits, and the weight that this means."""
    rng = np.random.default_rng(2)
    N, K = 100, 40
    b = Builder()
    x = Value(TensorType("f32", (S, K)), "x")
    if kind == "i8":
        stored = rng.integers(-127, 128, (N, K)).astype("i1")
        scale = (rng.random(N) / 100).astype("f4")
        weights = {"w": stored, "s": scale}
        wide = b(ops.Cast("f32"), b(ops.Weight("w", TensorType("i8", (N, K)))))
        factor = b(ops.Weight("s", TensorType("f32", (N,))))
        weight = b(ops.Mul(), wide, b(ops.Unsqueeze((1,)), factor))
        exact = stored.astype("f8") * scale[:, None]
    else:
        dtype: DType = "bf16" if kind == "bf16" else "f16"
        stored = rng.standard_normal((N, K)).astype(NUMPY_DTYPES[dtype])
        weights = {"w": stored}
        weight = b(ops.Cast("f32"), b(ops.Weight("w", TensorType(dtype, (N, K)))))
        exact = stored.astype("f8")
    y = b(ops.Linear(), x, weight, None)
    graph = Graph("main", b.block([x], [y]), ("y",), (DimInfo("S"),))
    return Module("m", (graph,)), weights, exact


@pytest.mark.parametrize(
    "kind", ["i8", *(pytest.param(k, marks=pytest.mark.full) for k in ("bf16", "f16"))]
)
def test_weights_of_fewer_bits_stay_so_in_memory(kind: str) -> None:
    module, weights, exact = narrow(kind)
    executable = compile_module(module, weights)
    for count in (1, 4, 6, 50):
        inputs = numbers(module, {"S": count})
        found = run_arrays(executable, inputs)["y"]
        np.testing.assert_allclose(found, inputs["x"].astype("f8") @ exact.T, rtol=1e-5, atol=2e-5)
    assert isinstance(executable, TvmExecutable)
    if kind != "bf16":
        stored = load_file(executable.folder / "stored.safetensors")["w"]
        assert stored.dtype == weights["w"].dtype
        assert stored.shape == (7, 40, 16)
    # One kernel: the weight is widened in it, not before it.
    assert sum(executable.report.kernels.values()) == 1


def attending(
    H: int, G: int, K: int, V: int, dtype: DType = "f32", more: tuple[str, ...] = (), **has: Any
) -> Module:
    """One attention; ``more`` are those of bias and sinks that it has."""
    types = {
        "q": TensorType(dtype, (B, H, S, K)),
        "k": TensorType(dtype, (B, G, P + S, K)),
        "v": TensorType(dtype, (B, G, P + S, V)),
        "query_positions": TensorType("i64", (B, S)),
        "key_positions": TensorType("i64", (B, P + S)),
        "bias": TensorType(dtype, (1, H, S, P + S)),
        "sinks": TensorType(dtype, (H,)),
        "sizes": TensorType("bool", (B, S, P)),
    }
    values = {n: Value(t, n) for n, t in types.items() if n not in {"bias", "sinks"} - {*more}}
    b = Builder()
    operands = [values.get(name) for name in list(types)[:7]]
    (y,) = b.emit(ops.Attention(**has), *operands)
    dims = (DimInfo("B"), DimInfo("S"), DimInfo("P", min=0))
    return Module("m", (Graph("main", b.block(list(values.values()), [y]), ("y",), dims),))


def tokens(module: Module, batch: int, length: int, past: int) -> dict[str, Array]:
    """Inputs of an attention: some queries are padding, and some slots of the past are empty."""
    given = numbers(module, {"B": batch, "S": length, "P": past}, seed=length)
    queries = np.tile(np.arange(past, past + length), (batch, 1))
    keys = np.tile(np.arange(past + length), (batch, 1))
    queries[0, : length // 3] = -1
    keys[-1, : past + length - 1 : 5] = -1
    return {**given, "query_positions": queries, "key_positions": keys}


PLACES = ((1, 1, 0), (2, 1, 70), (3, 5, 1), (1, 2, 130), (2, 65, 3), (1, 50, 100), (1, 145, 0))
"""Batch, queries, past: few rows and many, parts of blocks of rows and of keys."""


@pytest.mark.parametrize(
    ("heads", "size", "has"),
    [
        pytest.param((6, 2), (16, 32), {}, marks=pytest.mark.full),
        pytest.param((3, 1), (64, 70), {"window": 7}, marks=pytest.mark.full),
        ((4, 4), (5, 9), {"causal": False, "scale": 0.3, "more": ("sinks",)}),
        ((2, 1), (12, 16), {"window": 60, "more": ("bias", "sinks")}),
    ],
)
def test_attention_of_few_rows_and_of_many(
    heads: tuple[int, int], size: tuple[int, int], has: dict[str, Any]
) -> None:
    module = attending(*heads, *size, **has)
    executable = compile_module(module)
    for place in PLACES:
        agree(module, executable, tokens(module, *place))


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f64"])
def test_attention_of_other_floats(dtype: DType) -> None:
    module = attending(4, 2, 24, 40, dtype, ("bias",), window=50)
    executable = compile_module(module)
    for place in PLACES:
        agree(module, executable, tokens(module, *place))


def test_what_a_row_does_not_see_does_not_reach_it() -> None:
    module = attending(3, 1, 16, 16, window=10)
    executable = compile_module(module)
    for length in (1, 120):
        given = tokens(module, 1, length, 200)
        given["query_positions"] = np.arange(200, 200 + length)[None]
        spoilt = {**given, "k": given["k"].copy()}
        # The window of the first query starts at key 191.
        spoilt["k"][:, :, :190] = 1e30
        first, second = (run_arrays(executable, g)["y"] for g in (given, spoilt))
        assert np.isfinite(first).all()
        np.testing.assert_array_equal(first, second)


def test_rows_computed_twice_are_the_same_on_any_number_of_threads() -> None:
    module = products("f32", ((272, 40),))
    weights = weights_of(module)
    executable = compile_module(module, weights)
    inputs = numbers(module, {"S": 97})
    alone = [
        run_arrays(executable, {k: v[i : i + 1] for k, v in inputs.items()})["y0"]
        for i in range(97)
    ]
    together = run_arrays(executable, inputs)["y0"]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-5, atol=1e-5)
    assert np.array_equal(together, run_arrays(executable, inputs)["y0"])


def test_memory_of_results_is_given_back() -> None:
    b = Builder()
    x = Value(TensorType("f32", (S, 4096)), "x")
    graph = Graph("main", b.block([x], [b(ops.Add(), x, x)]), ("y",), (DimInfo("S"),))
    executable = compile_module(Module("m", (graph,)))
    before = 0
    for length in range(250, 350):
        run_arrays(executable, {"x": np.ones((length, 4096), np.float32)})
        before = before or resident()
    # Each result has another size, as a state that grows; together they are 500 MB.
    assert resident() - before < 150 << 20


def resident() -> int:
    """The bytes of memory that the process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
