"""The interpreter: binding of sizes, checks of inputs, weights and results, rounding, the judge."""

from __future__ import annotations

import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.ir.op_samples import B, P, S, f32, i64

from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.defn import OpDef, op
from seqmix_ir.dims import dim, floordiv
from seqmix_ir.errors import IRError
from seqmix_ir.graph import DimInfo, Graph, Module, Value
from seqmix_ir.interpret import Interpreter, evaluate_op
from seqmix_ir.types import Loc, TensorType


def module_of(types: Any, build: Any, dims: Any = (), names: Any = "abcdefg") -> Any:
    params = [Value(t, n) for t, n in zip(types, names, strict=False)]
    b = Builder(Loc("here"))
    results = build(b, *params)
    outputs = tuple(f"y{i}" for i in range(len(results)))
    return Module("m", (Graph("main", b.block(params, results), outputs, tuple(dims)),))


def echo(*types: Any, dims: Any = ()) -> Any:
    return module_of(types, lambda b, *xs: xs, dims)


def zeros(*shape: Any, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


def run(module: Any, judge: Any = False, weights: Any = None, **inputs: Any) -> Any:
    return Interpreter(module, weights or {}, judge).run("main", inputs)


def test_a_mismatch_names_the_input_and_the_axis() -> None:
    q, k = f32(B, 2, S, 8), f32(B, 2, S, 8)
    message = r"^%b: axis 2 of f32\[B, 2, S, 8\] is 4, expected S = 5 \(S = 5 from axis 2 of %a\)$"
    with pytest.raises(IRError, match=message):
        run(echo(q, k), a=zeros(1, 2, 5, 8), b=zeros(1, 2, 4, 8))


def test_plain_names_bind_before_sums() -> None:
    module = module_of([f32(P + S), f32(S)], lambda b, *_: (b(ops.SizeOf(P)),))
    assert run(module, a=zeros(7), b=zeros(3))["y0"] == 4


def test_a_sum_that_does_not_fit_is_named() -> None:
    message = r"^%a: axis 0 of f32\[P \+ S\] is 7, expected P \+ S = 5 \(P = 2 from .*, S = 3 from"
    with pytest.raises(IRError, match=message):
        run(echo(f32(P + S), f32(S), f32(P)), a=zeros(7), b=zeros(3), c=zeros(2))


def test_a_multiple_is_solved_and_checked() -> None:
    module = module_of([f32(2 * S)], lambda b, _: (b(ops.SizeOf(S)),))
    assert run(module, a=zeros(6))["y0"] == 3
    with pytest.raises(IRError, match=r"axis 0 of f32\[2\*S\] is 5, which does not determine S"):
        run(module, a=zeros(5))


def test_sizes_that_nothing_determines_are_named() -> None:
    with pytest.raises(IRError, match=r"which does not determine S; no other input does"):
        run(echo(f32(floordiv(S, 2))), a=zeros(5))


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(IRError, match=r"@main: size P is -1 \(axis 0 of %a\), expected 0 or more"):
        run(echo(f32(P + S), f32(S)), a=zeros(2), b=zeros(3))


def test_numbers_are_checked() -> None:
    with pytest.raises(IRError, match=r"^%a: axis 1 of f32\[B, 3\] is 4, expected 3$"):
        run(echo(f32(B, 3)), a=zeros(1, 4))


def test_ranks_are_checked() -> None:
    message = r"^%a: expected f32\[B, 3\] of rank 2, got shape \(3,\) of rank 1"
    with pytest.raises(IRError, match=message):
        run(echo(f32(B, 3)), a=zeros(3))


@pytest.mark.parametrize(
    ("info", "size", "expected"),
    [
        (DimInfo("S", min=2), 1, "2 or more"),
        (DimInfo("S", max=4), 5, "4 or less"),
        (DimInfo("S", multiple_of=4), 6, "a multiple of 4"),
    ],
)
def test_the_header_bounds_sizes(info: Any, size: Any, expected: Any) -> None:
    message = rf"@main: size S is {size} \(axis 0 of %a\), expected {expected}$"
    with pytest.raises(IRError, match=message):
        run(echo(f32(S), dims=[info]), a=zeros(size))


def test_unknown_missing_and_wrong_inputs() -> None:
    module = echo(f32(S), i64(S))
    with pytest.raises(IRError, match=r"@main has no input 'bb'.*; it takes a, b"):
        run(module, a=zeros(2), b=zeros(2, dtype=np.int64), bb=zeros(2))
    with pytest.raises(IRError, match=r"@main needs b, which is not given"):
        run(module, a=zeros(2))
    message = r"@main: input %a is float64, expected float32 \(f32\[S\]\); convert it"
    with pytest.raises(IRError, match=message):
        run(module, a=zeros(2, dtype=np.float64), b=zeros(2, dtype=np.int64))
    with pytest.raises(IRError, match=r"no graph 'step'"):
        Interpreter(module, {}).run("step", {})


def weighted(dtype: Any = "f32") -> Any:
    type = TensorType(dtype, (3,))
    return module_of(
        [type.with_shape((S, 3))], lambda b, x: (b(ops.Mul(), x, b(ops.Weight("w", type))),)
    )


def test_weights_come_from_a_mapping_or_a_function() -> None:
    w = np.arange(3, dtype=np.float32)
    for source in ({"w": w}, {"w": w}.__getitem__):
        found = Interpreter(weighted(), source).run("main", {"a": np.ones((2, 3), np.float32)})
        np.testing.assert_array_equal(found["y0"], [w, w])


def test_a_weight_is_fetched_once_and_not_copied() -> None:
    w, asked = np.ones(3, np.float32), []

    def fetch(name: Any) -> Any:
        asked.append(name)
        return w

    interpreter = Interpreter(weighted(), fetch)
    for _ in range(3):
        interpreter.run("main", {"a": zeros(2, 3)})
    assert asked == ["w"]
    assert np.shares_memory(interpreter.weight("w"), w)


def test_missing_and_wrong_weights_are_named() -> None:
    with pytest.raises(IRError, match=r"here: 'weight': weight 'w' is missing from the 1 given"):
        run(weighted(), weights={"v": zeros(3)}, a=zeros(2, 3))
    with pytest.raises(IRError, match=r"weight 'w' is float16, expected float32 \(f32\[3\]\)"):
        run(weighted(), weights={"w": zeros(3, dtype=np.float16)}, a=zeros(2, 3))
    expected = r"weight 'w' of module 'm' is f32\[3\], found an array of shape \[4\]"
    with pytest.raises(IRError, match=expected):
        run(weighted(), weights={"w": zeros(4)}, a=zeros(2, 3))


def test_bf16_is_rounded_after_each_op() -> None:
    bf16 = TensorType("bf16", (1,))
    module = module_of([bf16, bf16], lambda b, x, y: (b(ops.Sub(), b(ops.Add(), x, y), x),))
    x, y = np.array([256.0], ml_dtypes.bfloat16), np.array([1.0], ml_dtypes.bfloat16)
    found = run(module, a=x, b=y)["y0"]
    assert found.dtype == ml_dtypes.bfloat16
    assert float(found[0]) == 0.0
    assert run(module, judge=True, a=x, b=y)["y0"] == 1.0


def test_bf16_weights_are_widened_exactly() -> None:
    w = np.array([1.5, -2.0, 0.25], ml_dtypes.bfloat16)
    a = np.ones((1, 3), ml_dtypes.bfloat16)
    np.testing.assert_array_equal(run(weighted("bf16"), weights={"w": w}, a=a)["y0"], [w])


def test_the_judge_takes_and_gives_float64() -> None:
    a, w = np.full((1, 3), 1 + 1e-12), np.ones(3, np.float32)
    found = run(weighted(), judge=True, weights={"w": w}, a=a)["y0"]
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, a)


def test_integers_stay_integers_in_the_judge() -> None:
    module = module_of([i64(S)], lambda b, x: (b(ops.Add(), x, x),))
    assert run(module, judge=True, a=np.arange(3))["y0"].dtype == np.int64


@op
class Careless(OpDef):
    """Says one thing and does another."""

    name = "careless"
    operands = ("x",)
    results = ("y",)
    mistake: str

    def infer(self, x: Any) -> Any:
        return (x,)

    def evaluate(self, run: Any, x: Any) -> Any:
        if self.mistake == "crash":
            raise ZeroDivisionError("oops")
        return {"shape": (x[:1],), "kind": (x.astype(np.int64),), "count": (x, x)}[self.mistake]


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("shape", r"here: 'careless': a result has shape \(1,\), its type f32\[S\] says \(3,\)"),
        ("kind", r"a result is int64, its type f32\[S\] says float32"),
        ("count", r"2 results, expected 1"),
    ],
)
def test_each_result_is_checked_against_its_type(mistake: Any, message: Any) -> None:
    module = module_of([f32(S)], lambda b, x: (b(Careless(mistake), x),))
    with pytest.raises(IRError, match=message):
        run(module, a=zeros(3))


def test_a_crash_inside_an_op_says_where() -> None:
    module = module_of([f32(S)], lambda b, x: (b(Careless("crash"), x),))
    with pytest.raises(ZeroDivisionError) as caught:
        run(module, a=zeros(3))
    assert caught.value.__notes__ == ["here: while 'careless' was evaluated"]


def test_slices_out_of_range_are_found_at_run_time() -> None:
    module = module_of([f32(S), f32(P)], lambda b, x, _: (b(ops.Slice(0, 0, P), x),))
    with pytest.raises(IRError, match=r"slice 0:P is 0:4 here, which does not lie within axis 0"):
        run(module, a=zeros(3), b=zeros(4))


ALIVE: list[weakref.ref[Any]] = []


@op
class Watched(OpDef):
    """Remembers its result without keeping it alive, and counts how many still live."""

    name = "watched"
    operands = ("x",)
    results = ("y",)

    def infer(self, x: Any) -> Any:
        return (x,)

    def evaluate(self, run: Any, x: Any) -> Any:
        y = x + 1
        assert sum(ref() is not None for ref in ALIVE) <= 1
        ALIVE.append(weakref.ref(y))
        return (y,)


def test_dead_values_are_dropped() -> None:
    ALIVE.clear()

    def build(b: Any, x: Any) -> Any:
        for _ in range(5):
            x = b(Watched(), x)
        return (x,)

    assert run(module_of([f32(S)], build), a=zeros(3))["y0"].tolist() == [5, 5, 5]
    assert len(ALIVE) == 5


def test_inputs_and_weights_are_not_changed() -> None:
    a, w = np.ones((2, 3), np.float32), np.full(3, 2, np.float32)
    run(weighted(), weights={"w": w}, a=a)
    assert (a == 1).all()
    assert (w == 2).all()


def test_warnings_of_numpy_are_no_noise() -> None:
    module = module_of([f32(S)], lambda b, x: (b(ops.Log(), x), b(ops.Cast("i64"), x)))
    found = run(module, a=np.array([-1.0, 0.0, np.inf], np.float32))
    np.testing.assert_array_equal(found["y0"], [np.nan, -np.inf, np.inf])


def test_one_op_can_be_evaluated_alone() -> None:
    b = Builder()
    n = dim("N")
    b.emit(ops.Iota(2 * n, "f32"))
    (found,) = evaluate_op(b.ops[0], (), {"N": 2})
    np.testing.assert_array_equal(found, [0, 1, 2, 3])
    b.emit(ops.Weight("w", f32(3)))
    with pytest.raises(IRError, match=r"declares no weight 'w'"):
        evaluate_op(b.ops[1], ())
