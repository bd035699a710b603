"""Groups of ops as one generated kernel, in the interpreter, against the judge."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tests.backends.random_primitives as primitives
import tests.backends.triton_kernels  # noqa: F401  # sets the interpreter up, or skips
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.triton_groups import GOLDEN_GROUPS, group_module
from tests.backends.triton_kernels import poisoned

from seqmix import cache
from seqmix_ir import ops
from seqmix_ir.binding import bind_dims
from seqmix_ir.builder import Builder
from seqmix_ir.defn import Array
from seqmix_ir.graph import Module, Value
from seqmix_ir.interpret import Interpreter
from seqmix_ir.types import TensorType
from seqmix_triton.codegen import group_kernel, sources
from seqmix_triton.codegen.generated import Generated
from seqmix_triton.codegen.group_kernel import GroupKernel
from seqmix_triton.rules import all_rules
from seqmix_triton.run import Runner

B, S = group_module.B, group_module.S


def check(
    module: Module, weights: Mapping[str, Array], inputs: Mapping[str, Array], tile: int = 0
) -> Generated:
    """The generated kernels give what the judge gives; ``tile`` elements go to a program."""
    generated = Generated(module)
    for _, kernel in generated.kernels():
        if isinstance(kernel, GroupKernel):
            kernel.tile = tile
    graph = generated.module.graphs[0]
    truth = Interpreter(module, weights, judge=True).run(graph.name, inputs)
    rules: dict[str, Any] = {**all_rules(), **generated.rules}
    runner = Runner(rules, lambda name: torch.from_numpy(weights[name]), torch.device("cpu"))
    sizes = bind_dims(graph, {name: inputs[name].shape for name in graph.inputs})
    tensors = tuple(torch.from_numpy(inputs[name]) for name in graph.inputs)
    with poisoned():
        found = runner.start(sizes).block(graph.block, tensors)
    for (name, wanted), result in zip(truth.items(), found, strict=True):
        error = np.abs(result.double().numpy() - wanted).max(initial=0.0)
        assert error <= 2e-5 * max(1.0, np.abs(wanted).max(initial=0.0)), f"{name}: {error}"
    return generated


@pytest.mark.parametrize("seed", [3, 8, 100001])
def test_a_few_drawn_graphs(seed: int) -> None:
    module, weights = primitives.draw(seed)
    graph = module.graphs[0]
    given = primitives.inputs(2, 5)
    check(module, weights, {name: given[name] for name in graph.inputs}, tile=64)


@pytest.mark.full
@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([(1, 1), (2, 5), (3, 17)]),
    st.sampled_from([0, 8, 64]),
)
def test_drawn_graphs(seed: int, sizes: tuple[int, int], tile: int) -> None:
    module, weights = primitives.draw(seed)
    given = primitives.inputs(*sizes)
    check(module, weights, {name: given[name] for name in module.graphs[0].inputs}, tile)


@pytest.mark.parametrize("name", GOLDEN_GROUPS)
def test_the_source_of_a_group_is_the_golden_one(name: str) -> None:
    module, inputs = GOLDEN_GROUPS[name]()
    generated = check(module, {}, inputs, tile=8)
    ((_, kernel),) = generated.kernels()
    group_module.check_source(name, kernel.source.text)


def test_rows_too_long_for_a_program_run_op_by_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_kernel, "LONGEST_ROW", 4)
    module, inputs = GOLDEN_GROUPS["residual_norm"]()
    generated = check(module, {}, inputs)
    ((_, kernel),) = generated.kernels()
    assert isinstance(kernel, GroupKernel)
    assert not kernel.fits(lambda size: size if isinstance(size, int) else 2)


def test_large_tensors_are_reached_by_64_bits() -> None:
    module, _ = GOLDEN_GROUPS["residual_norm"]()
    ((_, kernel),) = Generated(module).kernels()
    assert isinstance(kernel, GroupKernel)
    plan = kernel.plan(lambda size: size if isinstance(size, int) else 2, True)
    assert str(plan.constants["OFFSET"]) == "int64"


def test_indices_out_of_range_read_nothing() -> None:
    def write(b: Builder, table: Value, ids: Value) -> tuple[Value, ...]:
        return (b(ops.Tanh(), b(ops.Mul(), *(b(ops.Gather(0), table, ids),) * 2)),)

    types = [TensorType("f32", (3, 4)), TensorType("i64", (B, S))]
    module = group_module.of(types, write, "table ids")
    generated = Generated(module)
    graph = generated.module.graphs[0]
    runner = Runner({**all_rules(), **generated.rules}, dict[str, Any]().__getitem__,
                    torch.device("cpu"))  # fmt: skip
    table, ids = torch.rand(3, 4), torch.tensor([[2, -1, 3]])
    (found,) = runner.start({"B": 1, "S": 3}).block(graph.block, (table, ids))
    torch.testing.assert_close(found[0, :2], torch.tanh(table[[2, 2]] ** 2))
    assert not found[0, 2].any()


def test_one_row_of_a_batch_whose_size_is_not_known() -> None:
    def write(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
        first = b(ops.Slice(0, 0, 1), x)
        return (b(ops.Neg(), b(ops.Concat(1), first, b(ops.Exp(), y))),)

    types = [TensorType("f32", (B, S)), TensorType("f32", (1, 3))]
    rng = np.random.default_rng(0)
    given = {"x": rng.standard_normal((2, 5)), "y": rng.standard_normal((1, 3))}
    module = group_module.of(types, write, "x y")
    check(module, {}, {name: array.astype("f4") for name, array in given.items()}, tile=8)


def test_what_was_compiled_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQMIX_CACHE_DIR", str(tmp_path))
    module, _ = GOLDEN_GROUPS["residual_norm"]()
    ((name, kernel),) = Generated(module).kernels()
    text = kernel.source.text
    first = sources.source_path(name, text)
    assert first.parent == tmp_path / "triton"
    written = first.stat().st_mtime_ns
    commented = text.replace("# add", "# of another layer: add")
    assert commented != text
    assert sources.source_path(name, commented) == first
    assert first.stat().st_mtime_ns == written
    first.write_text(first.read_text().replace("tl.sqrt", "tl.exp"))
    assert "tl.sqrt" in sources.source_path(name, text).read_text()
    other = sources.source_path(name, text.replace("tl.sqrt", "tl.exp"))
    assert other != first
    monkeypatch.setenv("SEQMIX_NO_CACHE", "1")
    assert cache.directory() not in sources.source_path(name, text).parents


def test_layers_share_their_kernels(tmp_path: Path) -> None:
    def write(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
        for _ in range(3):
            x = b(ops.CumSum(1), b(ops.RmsNorm(1e-5), b(ops.Add(), x, y), None))
        return (x,)

    rows = TensorType("f32", (B, S, 6))
    generated = Generated(group_module.of([rows, rows], write, "x y"))
    assert generated.uses == {"fused_add_rms_norm": 3}
    generated.save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["fused_add_rms_norm.py"]
