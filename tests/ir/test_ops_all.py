from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.ir.op_samples import SAMPLES, SIZES, Sample

from seqmix_ir import ops
from seqmix_ir.dims import evaluate_size
from seqmix_ir.interpret import NUMPY_DTYPES, Interpreter
from seqmix_ir.types import FLOATS

DECOMPOSED = [(s, style) for s in SAMPLES for style in s.defn.decompositions()]


@pytest.mark.parametrize("cls", ops.CORE_OPS, ids=lambda c: c.name)
def test_every_core_op_has_a_sample_and_examples(cls: Any) -> None:
    assert cls is ops.Weight or any(type(s.defn) is cls for s in SAMPLES)
    examples = cls.examples(np.random.default_rng(0))
    assert examples
    assert all(type(example.defn) is cls for example in examples)


@pytest.mark.parametrize("cls", ops.CORE_OPS, ids=lambda c: c.name)
def test_every_core_op_says_what_it_is(cls: Any) -> None:
    assert cls.__doc__.strip()
    assert dataclasses.fields(cls) is not None
    assert getattr(ops, cls.__name__) is cls
    assert cls.__name__ in ops.__all__


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_results_have_the_inferred_types(sample: Sample, sizes: Any) -> None:
    module = sample.module()
    outputs = Interpreter(module, {}).run("main", sample.inputs(sizes))
    for name, value in module.graph("main").results.items():
        assert outputs[name].dtype == NUMPY_DTYPES[value.type.dtype]
        assert outputs[name].shape == tuple(evaluate_size(n, sizes) for n in value.type.shape)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_float32_is_close_to_the_judge(sample: Sample) -> None:
    module, inputs = sample.module(), sample.inputs(SIZES[0])
    run, judge = (Interpreter(module, {}, judge).run("main", inputs) for judge in (False, True))
    for name, value in module.graph("main").results.items():
        assert judge[name].dtype == (
            np.float64 if value.type.dtype in FLOATS else NUMPY_DTYPES[value.type.dtype]
        )
        rough = 2e-2 if value.type.dtype in ("f16", "bf16") else 1e-5
        np.testing.assert_allclose(
            run[name].astype(judge[name].dtype), judge[name], rtol=rough, atol=rough
        )


@pytest.mark.parametrize(("sample", "style"), DECOMPOSED, ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "judge"])
def test_decompositions_mean_the_same(sample: Sample, style: Any, dtype: Any) -> None:
    judge = dtype == "judge"
    kept = sample if judge else sample.with_floats(dtype)
    tolerance = {"f32": 1e-6, "bf16": 2**-8, "f16": 2**-10, "judge": 1e-13}[dtype]
    plain, written = kept.module(), kept.module(style)
    for seed, sizes in enumerate(SIZES):
        inputs = kept.inputs(sizes, seed)
        expected = Interpreter(plain, {}, judge).run("main", inputs)
        found = Interpreter(written, {}, judge).run("main", inputs)
        for name, array in expected.items():
            assert found[name].dtype == array.dtype
            assert found[name].shape == array.shape
            np.testing.assert_allclose(
                found[name].astype(np.float64),
                array.astype(np.float64),
                rtol=tolerance,
                atol=tolerance,
            )


@pytest.mark.parametrize(("sample", "style"), DECOMPOSED, ids=str)
def test_decompositions_keep_the_types_and_avoid_the_op(sample: Sample, style: Any) -> None:
    plain, written = sample.module(), sample.module(style)
    types = [v.type for v in plain.graph("main").block.results]
    assert [v.type for v in written.graph("main").block.results] == types
    names = {op.defn for op in written.graph("main").block.walk()}
    assert sample.defn not in names


def test_the_same_attributes_make_equal_definitions() -> None:
    assert ops.Reshape((2, 3)) == ops.Reshape((2, 3))
    assert hash(ops.Softmax(1)) == hash(ops.Softmax(1))
    assert len({ops.Neg(), ops.Abs(), ops.Neg()}) == 2


def test_attributes_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ops.Softmax(1).__setattr__("axis", 2)


def test_the_default_table_holds_the_core_ops() -> None:
    table = ops.default_table()
    assert table.names() == sorted(cls.name for cls in ops.CORE_OPS)
    assert table.lookup("attention") is ops.Attention
