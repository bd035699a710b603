"""The tvm backend with 16-bit models, and with weights smaller than their model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tests.backends.needs_tvm  # noqa: F401  # skips
from tests.backends.graphs import CONFIG
from tests.core import tiny

from seqmix.backend import Executable, Program
from seqmix.cli import invoke
from seqmix.compile import compile, program_of
from seqmix.errors import BackendError
from seqmix.model import Model
from seqmix.storage import save_model
from seqmix.testing import check_model
from seqmix.testing.tolerances import MODEL_TOLERANCES, WEIGHT_TOLERANCES
from seqmix.weights import Weights
from seqmix_ir import ops
from seqmix_ir.builder import Builder, trace_block
from seqmix_ir.graph import Graph, Module, Value
from seqmix_ir.types import TensorType
from seqmix_tvm.backend import TvmBackend
from seqmix_tvm.quantise import channel_errors, quantise_program, rounded

STEPS: list[Any] = [{**tiny.SWIGLU, "hidden": 67}, {**tiny.MLP, "hidden": 45}]
WITH_ATTENTION: list[Any] = [{**tiny.ATTENTION, "head_dim": 16}, *STEPS]
BIG = {"width": 40, "vocab_size": 101, "head_dim": 16}


def model(steps: list[Any] = STEPS, **changes: Any) -> Model:
    """Matrices of odd sizes that are large enough to be made smaller; a tied embedding."""
    return tiny.model(steps, **{**BIG, **changes})


def judge(source: Any) -> Executable:
    return compile(source, "reference", options={"judge": True}, cache=False)


@pytest.mark.parametrize(
    ("dtype", "steps"),
    [
        ("bf16", STEPS),
        # The kernel of the attention takes LLVM longer than all others together.
        pytest.param("bf16", WITH_ATTENTION, marks=pytest.mark.full, id="bf16-attention"),
        pytest.param("f16", WITH_ATTENTION, marks=pytest.mark.full, id="f16-attention"),
    ],
)
def test_a_model_of_16_bits_is_as_near_to_float64_as_torch(dtype: str, steps: list[Any]) -> None:
    made = model(steps, dtype=dtype)
    executable = compile(made, TvmBackend(), cache=False)
    report = check_model(made, {"tvm": executable}, (1, 65), judge=judge(made))
    report.raise_for_failures()
    worst = {
        name: max(row.error for row in report.rows if row.where.startswith(name))
        for name in ("tvm", "torch")
    }
    # Sums are float32 and results are rounded once: not worse than torch, which does the same.
    assert worst["tvm"] < 3 * worst["torch"]


@pytest.fixture(scope="module")
def int8() -> tuple[Model, Executable]:
    made = model()
    return made, compile(made, TvmBackend(), options={"weights": "int8"}, cache=False)


def test_int8_weights_are_computed_as_the_judge_does(int8: tuple[Model, Executable]) -> None:
    check_smaller(*int8, "int8")


@pytest.mark.full
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_weights_of_16_bits_are_computed_as_the_judge_does(kind: str) -> None:
    made = model(WITH_ATTENTION)
    executable = compile(made, TvmBackend(), options={"weights": kind}, cache=False)
    check_smaller(made, executable, kind)


def check_smaller(made: Model, executable: Executable, kind: str) -> None:
    smaller, names = quantise_program(program_of(made), kind)
    assert "embed.weight" in names
    exactly = check_model(made, {"tvm": executable}, (1, 65), judge=judge(smaller))
    rows = [row for row in exactly.rows if row.where.startswith("tvm")]
    assert rows
    assert all(row.error <= MODEL_TOLERANCES["f32"] for row in rows)
    # Against the model itself there is a difference, of the size that the kind stands for.
    allowed = {"tvm": WEIGHT_TOLERANCES[kind]}
    cost = check_model(made, {"tvm": executable}, (1, 7), tolerances=allowed)
    cost.raise_for_failures()
    assert max(row.error for row in cost.rows) > MODEL_TOLERANCES["f32"]


@pytest.mark.full
def test_int8_weights_of_a_16_bit_model() -> None:
    made = model(WITH_ATTENTION, dtype="bf16")
    executable = compile(made, TvmBackend(), options={"weights": "int8"}, cache=False)
    smaller, _ = quantise_program(program_of(made), "int8")
    report = check_model(made, {"tvm": executable}, (7,), judge=judge(smaller))
    rows = [row for row in report.rows if row.where.startswith("tvm")]
    assert all(row.error <= MODEL_TOLERANCES["bf16"] for row in rows)


def test_the_report_says_what_int8_costs(int8: tuple[Model, Executable], tmp_path: Path) -> None:
    made, executable = int8
    executable.save(tmp_path)
    errors = json.loads((tmp_path / "manifest.json").read_text())["weights"]["errors"]
    weight = made.state_dict()["embed.weight"].numpy()
    found = channel_errors(weight, "int8")
    assert errors["embed.weight"]["mean"] == pytest.approx(found.mean())
    assert errors["embed.weight"]["largest"] == pytest.approx(found.max())
    assert any(note.startswith("weights in int8: ") for note in executable.report.notes)
    assert any("largest" in note for note in executable.report.notes)
    bytes_of_model = sum(p.numel() * p.element_size() for p in made.parameters())
    assert executable.report.bytes["stored.safetensors"] < 0.5 * bytes_of_model


def test_int8_is_off_by_half_a_step_at_most() -> None:
    weight = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    weight[1] = 0
    weight[2] *= 1e-3
    weight[3, 7] = 50
    quantised, scale = rounded(weight, "int8")
    assert scale is not None
    assert quantised.dtype == np.int8
    assert scale[1] == 0
    assert np.all(np.abs(quantised * scale[:, None] - weight) <= scale[:, None] * 0.5001)
    assert np.abs(quantised).max(axis=1).tolist() == [127, 0, 127, 127, 127]
    errors = channel_errors(weight, "int8")
    assert errors[1] == 0
    assert errors[3] > 3 * errors[0]


def test_weights_that_are_read_in_another_way_stay() -> None:
    wide, square = TensorType("f32", (40, 8)), TensorType("f32", (40, 40))
    x, h = Value(TensorType("f32", (3, 8)), "x"), Value(TensorType("f32", (3, 40)), "h")
    b = Builder()
    alone, turned = (b(ops.Weight(key, wide)) for key in ("alone", "turned"))
    few = b(ops.Weight("few", TensorType("f32", (4, 8))))
    recurrent = b(ops.Weight("recurrent", square))
    results = [b(ops.Linear(), x, w, None) for w in (alone, turned, few)]
    results.append(b(ops.Transpose((1, 0)), turned))
    sequence = b(ops.Unsqueeze((1,)), results[0])
    body = trace_block([h.type, h.type, square], cell)
    results += b.emit(ops.Scan(1, 1, 1), h, sequence, recurrent, body=body)
    names = tuple(f"y{i}" for i in range(len(results)))
    module = Module("m", (Graph("main", b.block((x, h), results), names),))
    smaller, chosen = quantise_program(Program(module, Weights({}), CONFIG), "int8")
    assert chosen == ["alone"]
    kept = {"turned", "few", "recurrent"}
    assert set(smaller.module.weights()) == {"alone:int8", "alone:scale", *kept}


def cell(b: Builder, h: Value, x: Value, w: Value) -> tuple[Value, ...]:
    new = b(ops.Add(), b(ops.Linear(), h, w, None), x)
    return new, new


@pytest.mark.parametrize("wrong", ["int4", "i8", ""])
def test_an_unknown_kind_of_weights_is_refused(wrong: str) -> None:
    with pytest.raises(BackendError, match="'weights' should be one of model, bf16, f16, int8"):
        TvmBackend({"weights": wrong})


@pytest.mark.full
def test_the_command_says_what_int8_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(model(), tmp_path)
    command = ["check", str(tmp_path), "--backend", "tvm", "--weights", "int8", "--json"]
    assert invoke(command) == 0
    report = json.loads(capsys.readouterr().out)
    errors = {name: [r["error"] for r in report["rows"] if r["where"] == f"{name} f32"]
              for name in ("tvm", "tvm, weights int8")}  # fmt: skip
    assert 100 * max(errors["tvm"]) < max(errors["tvm, weights int8"])
    assert any(note.startswith("weights in int8: ") for note in report["notes"])


@pytest.mark.parametrize("arguments", [["--weights", "int3", "-b", "tvm"], ["--weights", "int8"]])
def test_the_command_refuses_weights_that_no_backend_has(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["check", "no such model", *arguments]) == 2
    assert "--weights should be one of f16, bf16, int8" in capsys.readouterr().err
