"""Weights of 4 and 8 bits in ONNX files: packed by ONNX Runtime, run with states, priced."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from tests.core import tiny

import seqmix
from seqmix.cli import invoke
from seqmix.errors import BackendError, ConfigError
from seqmix.model import Model
from seqmix.storage import save_model
from seqmix_onnxruntime.quantise import BLOCK, KINDS, channel_errors, pack, unpacked

WIDTH = 96
STEPS: list[Any] = [
    {"kind": "attention", "heads": 2, "head_dim": 48},
    {"kind": "swiglu", "hidden": 80},
]


def model(*, tied: bool, width: int = WIDTH) -> Model:
    blocks = [{"steps": STEPS}]
    return tiny.model(width=width, tie_embeddings=tied, head_dim=48, blocks=blocks)


def rounded(source: Model, kind: str) -> Model:
    """A torch model whose matrices are what the packed ones stand for."""
    made = Model(source.config).eval().requires_grad_(False)
    made.load_state_dict(source.state_dict())
    for name, parameter in made.named_parameters():
        if parameter.dim() == 2 and min(parameter.shape) >= BLOCK:
            weight = parameter.numpy()
            bits = 8 if name == "embed.weight" else KINDS[kind]
            found = unpacked(pack(weight, bits), bits, weight.shape[1])
            made.get_parameter(name).copy_(torch.from_numpy(found))
    return made


@pytest.mark.parametrize(("shape", "bits"), [((33, 100), 4), ((32, 96), 8), ((40, 31), 4)])
def test_a_block_has_levels_between_its_extremes(shape: tuple[int, int], bits: int) -> None:
    """Nothing is further off than half a step of its block, channels of zeros not at all."""
    weight = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    weight[3] = 0
    packed = pack(weight, bits)
    found = unpacked(packed, bits, shape[1])
    assert found.shape == shape
    steps = np.repeat(np.abs(packed.scales), BLOCK, axis=1)[:, : shape[1]]
    # The zero point is a whole number, which moves the levels by half a step more.
    assert (np.abs(found - weight) <= 1.01 * steps + 1e-7).all()
    errors = channel_errors(weight, packed, bits)
    assert errors[3] == 0
    assert (errors[:3] > 0).all()
    assert errors.max() < (0.13 if bits == 4 else 0.01)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_same_as_the_quantizer_of_whole_files(bits: int) -> None:
    pytest.importorskip("onnx_ir")
    from onnx import helper, numpy_helper
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    weight = np.random.default_rng(1).normal(size=(40, 100)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    values = [
        helper.make_tensor_value_info(name, 1, shape)
        for name, shape in (("x", [1, 100]), ("y", [1, 40]))
    ]
    stored = [numpy_helper.from_array(np.ascontiguousarray(weight.T), "w")]
    graph = helper.make_graph([node], "g", values[:1], values[1:], stored)
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    quantizer = MatMulNBitsQuantizer(whole, bits=bits, block_size=BLOCK, is_symmetric=False)
    quantizer.process()
    found = quantizer.model.model.graph
    arrays = {proto.name: numpy_helper.to_array(proto) for proto in found.initializer}
    packed = pack(weight, bits)
    for name, ours in zip(
        found.node[0].input[1:], (packed.codes, packed.scales, packed.zeros), strict=True
    ):
        np.testing.assert_array_equal(arrays[name].reshape(ours.shape), ours)


@pytest.mark.parametrize(
    ("tied", "kind"), [(True, "int4"), pytest.param(False, "int8", marks=pytest.mark.full)]
)
def test_a_file_computes_with_the_packed_weights(tied: bool, kind: str) -> None:
    """Prefill and a step behind it, as the torch model with those weights does."""
    source = model(tied=tied)
    compiled = seqmix.compile(source, "onnxruntime", options={"weights": kind}, cache=False)
    judge = rounded(source, kind)
    ids, positions = tiny.tokens(2, 9)
    logits, states = compiled(ids[:, :8], positions[:, :8])
    last, _ = compiled(ids[:, 8:], positions[:, 8:], states)
    wanted, _ = judge(ids, positions)
    found = torch.cat([logits, last], dim=1)
    # Products round their inputs to 8 bits.
    assert (found - wanted).abs().max() < 5e-2 * wanted.abs().max()
    kernels = compiled.report.kernels
    assert kernels["GatherBlockQuantized"] == 1
    assert "MatMul" not in kernels
    matrices, errors = compiled.report.notes[:2]
    count = kernels["MatMulNBits"] + (0 if tied else 1)
    assert matrices == f"weights in {kind}: {count} of {count} matrices"
    assert re.search(r"mean \d\.\d\de-0[1-4], largest .* in '", errors)


@pytest.mark.full
def test_a_table_and_its_head_lie_in_the_folder_once(tmp_path: Path) -> None:
    compiled = seqmix.compile(
        model(tied=True), "onnxruntime", options={"weights": "int8"}, cache=False
    )
    compiled.save(tmp_path)
    graph = onnx.load(tmp_path / "model.onnx", load_external_data=False).graph
    places = {
        proto.name: {e.key: e.value for e in proto.external_data}.get("offset")
        for proto in graph.initializer
    }
    assert places["embed.weight:int8"] == places["embed.weight:int8:rows"] is not None
    again = seqmix.load(tmp_path)
    ids, positions = tiny.tokens(1, 5)
    assert torch.equal(again(ids, positions)[0], compiled(ids, positions)[0])


@pytest.mark.full
def test_a_width_without_whole_blocks_keeps_its_table() -> None:
    source = model(tied=True, width=100)
    compiled = seqmix.compile(source, "onnxruntime", options={"weights": "int8"}, cache=False)
    assert "GatherBlockQuantized" not in compiled.report.kernels
    ids, positions = tiny.tokens(1, 6)
    wanted, _ = source(ids, positions)
    assert (compiled(ids, positions)[0] - wanted).abs().max() < 0.1 * wanted.abs().max()


@pytest.mark.full
def test_recurrent_weights_stay_as_they_are() -> None:
    """Those that a Scan reads at every step; the others of the block do get smaller."""
    cell = {"kind": "slstm", "heads": 2, "conv_taps": 0}
    source = tiny.model(width=64, head_dim=32, blocks=[{"steps": [cell]}], position=None)
    compiled = seqmix.compile(source, "onnxruntime", options={"weights": "int8"}, cache=False)
    assert compiled.report.kernels["Scan"] == 1
    packed, total = map(int, re.findall(r"\d+", compiled.report.notes[0])[1:])
    assert 0 < packed <= total
    ids, positions = tiny.tokens(1, 20)
    wanted, _ = source(ids, positions)
    assert (compiled(ids, positions)[0] - wanted).abs().max() < 0.1 * wanted.abs().max()


def test_unknown_kinds() -> None:
    with pytest.raises(BackendError, match=r"should be one of .*, found 'int5'; did you mean"):
        seqmix.compile(model(tied=True), "onnxruntime", options={"weights": "int5"})


def test_evaluations_want_a_backend_that_has_them() -> None:
    from seqmix_longcontext.subject import Subject

    with pytest.raises(ConfigError, match="weights in int8 need a backend that has them"):
        Subject.read("smollm2", weights="int8")


@pytest.mark.full
def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(model(tied=True), tmp_path / "model")
    source, out = str(tmp_path / "model"), str(tmp_path / "out")
    assert invoke(["export", source, out, "--weights", "int4"]) == 0
    assert (tmp_path / "out" / "step.onnx").is_file()
    command = ["check", source, "--backend", "onnxruntime", "--weights", "int8"]
    assert invoke(command) == 0
    assert "weights in int8: 5 of 5 matrices" in capsys.readouterr().out
