"""Files and folders: external weights, saving and loading, options, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from tests.backends.onnx_graphs import CONFIG, compile_module, run_arrays
from tests.core import tiny

import seqmix_onnxruntime.form as form
from seqmix.backend import Program
from seqmix.compile import compile, load
from seqmix.errors import BackendError
from seqmix.weights import Weights
from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.dims import dim
from seqmix_ir.graph import DimInfo, Graph, Module, Value
from seqmix_ir.types import TensorType
from seqmix_onnxruntime.backend import OnnxRuntimeBackend
from seqmix_onnxruntime.model_file import DATA, MODEL
from seqmix_onnxruntime.session import OnnxExecutable

S = dim("S")
WEIGHTS = {
    "w": np.random.default_rng(0).standard_normal((40, 30)).astype("f4"),
    "bias": np.arange(40, dtype="f4"),
}
X = {"x": np.random.default_rng(1).standard_normal((3, 30)).astype("f4")}


def linear_module() -> Module:
    x = Value(TensorType("f32", (S, 30)), "x")
    b = Builder()
    w = b(ops.Weight("w", TensorType("f32", (40, 30))))
    bias = b(ops.Weight("bias", TensorType("f32", (40,))))
    block = b.block([x], [b(ops.Linear(), x, w, bias)])
    return Module("m", (Graph("main", block, ("y",), (DimInfo("S"),)),))


def compiled(**options: Any) -> OnnxExecutable:
    return compile_module(linear_module(), WEIGHTS, **options)


def expected() -> Any:
    return X["x"] @ WEIGHTS["w"].T + WEIGHTS["bias"]


def test_weights_above_the_threshold_lie_beside_the_file() -> None:
    inside, outside = compiled(), compiled(external_data_threshold=1000)
    assert not (inside.folder / DATA).exists()
    assert (outside.folder / DATA).stat().st_size == 40 * 30 * 4
    assert outside.report.bytes[DATA] == 4800
    proto = onnx.load(outside.folder / MODEL, load_external_data=False)
    places = {i.name: i.data_location for i in proto.graph.initializer}
    assert places == {"w.T": onnx.TensorProto.EXTERNAL, "bias": onnx.TensorProto.DEFAULT}
    for executable in (inside, outside):
        np.testing.assert_allclose(run_arrays(executable, X)["y"], expected(), rtol=1e-5)


def test_external_weights_begin_at_pages() -> None:
    model = tiny.model([tiny.MLP], position=None, head_dim=None, width=40)
    executable = compile(model, "onnxruntime", options={"external_data_threshold": 0}, cache=False)
    assert isinstance(executable, OnnxExecutable)
    proto = onnx.load(executable.folder / MODEL, load_external_data=False)
    offsets = [
        int(entry.value)
        for i in proto.graph.initializer
        for entry in i.external_data
        if entry.key == "offset"
    ]
    assert len(offsets) >= 3
    assert all(offset % 4096 == 0 for offset in offsets)
    ids, positions = tiny.tokens(2, 3)
    wanted = model(ids, positions)[0]
    torch.testing.assert_close(executable(ids, positions)[0], wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("threshold", [0, pytest.param(10**9, marks=pytest.mark.full)])
def test_a_saved_folder_runs_by_itself(tmp_path: Path, threshold: int) -> None:
    model = tiny.model()
    executable = compile(
        model,
        "onnxruntime",
        options={"external_data_threshold": threshold, "threads": 1},
        cache=False,
    )
    executable.save(tmp_path / "made")
    ids, positions = tiny.tokens(2, 5)
    wanted, states = executable(ids, positions)
    folder = tmp_path / "moved"
    (tmp_path / "made").rename(folder)
    del executable
    loaded = load(folder)
    assert loaded.report.backend == "onnxruntime"
    assert loaded.config == model.config
    logits, after = loaded(ids, positions)
    assert torch.equal(logits, wanted)
    assert all(torch.equal(after[name], states[name]) for name in states)
    again = tmp_path / "again"
    loaded.save(again)
    assert torch.equal(load(again)(ids, positions)[0], wanted)
    loaded.save(folder)
    assert torch.equal(load(folder)(ids, positions)[0], wanted)


def test_saving_over_another_model_leaves_nothing_of_it(tmp_path: Path) -> None:
    compiled(external_data_threshold=0).save(tmp_path)
    assert (tmp_path / DATA).exists()
    compiled().save(tmp_path)
    assert not (tmp_path / DATA).exists()
    loaded = load(tmp_path)
    assert isinstance(loaded, OnnxExecutable)
    np.testing.assert_allclose(run_arrays(loaded, X)["y"], expected(), rtol=1e-5)


def test_the_temporary_folder_goes_with_the_executable() -> None:
    executable = compiled()
    folder = executable.folder
    assert folder.exists()
    del executable
    assert not folder.exists()


def test_a_folder_with_a_part_missing(tmp_path: Path) -> None:
    compiled().save(tmp_path)
    (tmp_path / MODEL).unlink()
    with pytest.raises(BackendError, match=r"model\.onnx: is missing"):
        load(tmp_path)
    manifest = json.loads((tmp_path / "seqmix.json").read_text())
    del manifest["interface"]
    (tmp_path / "seqmix.json").write_text(json.dumps(manifest))
    with pytest.raises(BackendError, match=r"seqmix\.json: 'interface' is missing"):
        load(tmp_path)


def test_a_damaged_file(tmp_path: Path) -> None:
    compiled().save(tmp_path)
    content = (tmp_path / MODEL).read_bytes()
    (tmp_path / MODEL).write_bytes(content[: len(content) // 2])
    with pytest.raises(BackendError, match="is no ONNX file"):
        load(tmp_path)


def test_a_file_that_the_checker_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "too_new", lambda op, form: None)
    x = Value(TensorType("f32", (S, 3)), "x")
    b = Builder()
    block = b.block([x], [b(ops.RmsNorm(1e-5), x, None)])
    module = Module("m", (Graph("main", block, ("y",), (DimInfo("S"),)),))
    with pytest.raises(BackendError, match="does not pass the ONNX checker"):
        compile_module(module, opset=22)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thread": 2}, "no option 'thread'; did you mean 'threads'"),
        ({"threads": "two"}, "option 'threads' should be int, found 'two'"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendError, match=message):
        compiled(**options)


def test_targets_that_are_not_here() -> None:
    program = Program(linear_module(), Weights({}), CONFIG)
    with pytest.raises(BackendError, match="no target 'tpu' here; available: cpu"):
        OnnxRuntimeBackend().compile(program, "tpu", {})


def test_one_file_is_of_one_graph() -> None:
    (graph,) = linear_module().graphs
    twice = Module("m", (graph, Graph("other", graph.block, graph.outputs, graph.dims)))
    with pytest.raises(BackendError, match="one graph, found main, other"):
        OnnxRuntimeBackend().compile(Program(twice, Weights({}), CONFIG), "cpu", {})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"input 'x' f32\[S, 30\] is missing"),
        ({"x": torch.zeros(2, 30), "z": torch.zeros(1)}, "'z' is no input"),
        ({"x": torch.zeros(2, 30, dtype=torch.float64)}, r"should be f32\[S, 30\], found f64"),
        ({"x": torch.zeros(2, 29)}, "axis 1 of 'x' should be 30, found 29"),
        ({"x": torch.zeros(30)}, r"found f32\[30\]"),
        ({"x": torch.zeros(0, 30)}, "S should be at least 1"),
    ],
)
def test_inputs_that_do_not_fit(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendError, match=message):
        compiled().run("main", inputs)


def test_ids_out_of_range() -> None:
    model = tiny.model([tiny.MLP], position=None, head_dim=None)
    executable = compile(model, "onnxruntime", cache=False)
    ids, positions = tiny.tokens(1, 3)
    with pytest.raises(BackendError, match=r"input_ids should be in 0\.\.52, found 53"):
        executable(torch.full_like(ids, 53), positions)
    with pytest.raises(BackendError, match="found -1"):
        executable(torch.full_like(ids, -1), positions)


def test_strided_inputs_and_purity() -> None:
    executable = compiled()
    wide = torch.from_numpy(np.repeat(X["x"], 2, axis=1))
    strided = wide[:, ::2]
    assert not strided.is_contiguous()
    before = strided.clone()
    first = executable.run("main", {"x": strided})["y"]
    kept = first.clone()
    second = executable.run("main", {"x": strided + 1})["y"]
    np.testing.assert_allclose(first.numpy(), expected(), rtol=1e-5)
    assert torch.equal(strided, before)
    assert torch.equal(first, kept)
    assert not torch.equal(first, second)
