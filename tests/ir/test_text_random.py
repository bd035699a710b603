"""Text and passes on random small modules."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ir.random_graphs import modules

from seqmix_ir import Interpreter, IRError, Module, fingerprint, parse, same, show, verify
from seqmix_ir.dims import evaluate_size
from seqmix_ir.graph import DimInfo
from seqmix_ir.interpret import NUMPY_DTYPES
from seqmix_ir.passes import canonicalize, cse, dce, fold

LOOSE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SIZES = {"B": 2, "S": 3, "P": 1}


@given(modules())
@LOOSE
def test_modules_come_back_from_their_text(module: Module) -> None:
    text = show(module)
    again = parse(text)
    assert same(again, module)
    assert show(again) == text
    assert fingerprint(again) == fingerprint(module)
    located = show(module, locs=True)
    assert show(parse(located), locs=True) == located


@given(modules())
@LOOSE
def test_passes_keep_modules_valid_and_come_to_rest(module: Module) -> None:
    verify(_loosened(module))
    for change in (canonicalize, fold, cse, dce):
        changed = change(_loosened(module))
        verify(changed)
        assert same(change(changed), changed)


@given(modules(), st.integers(0, 9))
@LOOSE
def test_passes_keep_what_modules_compute(module: Module, seed: int) -> None:
    module = _loosened(module)
    rng = np.random.default_rng(seed)
    inputs = {
        name: rng.standard_normal([evaluate_size(s, SIZES) for s in v.type.shape]).astype(
            np.float32
        )
        for name, v in module.graphs[0].inputs.items()
    }
    weights = {
        key: np.zeros([evaluate_size(s, SIZES) for s in t.shape], NUMPY_DTYPES[t.dtype])
        for key, t in module.weights().items()
    }
    try:
        expected = Interpreter(module, weights).run("main", inputs)
    except IRError:
        return  # An index range of negative length.
    for change in (canonicalize, fold, cse, dce):
        found = Interpreter(change(module), weights).run("main", inputs)
        for key, array in expected.items():
            np.testing.assert_array_equal(found[key], array)
            zero = array == 0 if array.dtype.kind == "f" else np.zeros(array.shape, np.bool_)
            np.testing.assert_array_equal(np.signbit(found[key][zero]), np.signbit(array[zero]))


@given(modules(), st.data())
@LOOSE
def test_damaged_text_is_an_error_or_a_module(module: Module, data: st.DataObject) -> None:
    text = show(module)
    start = data.draw(st.integers(0, len(text)))
    stop = min(len(text), start + data.draw(st.integers(0, 12)))
    damaged = text[:start] + data.draw(st.text(max_size=4)) + text[stop:]
    if (found := _parsed(damaged)) is not None:
        show(found, locs=True)


@given(st.text(max_size=40))
@LOOSE
def test_any_text_is_an_error_or_a_module(text: str) -> None:
    for prefix in ("", "seqmix 1\nmodule @m {", "seqmix 1 module @m { graph @g(%x: f32["):
        _parsed(prefix + text)


def _parsed(text: str) -> Module | None:
    """The module, or None for an IRError that says where; anything else fails the test."""
    try:
        return parse(text)
    except IRError as error:
        if not str(error).startswith("<text>:"):
            raise AssertionError(f"no place in {error!r}") from error
        return None


def _loosened(module: Module) -> Module:
    """The module with bounds that the sizes used here keep."""
    (graph,) = module.graphs
    dims = tuple(DimInfo(info.name, 0) for info in graph.dims)
    return Module(module.name, (type(graph)(graph.name, graph.block, graph.outputs, dims),))
