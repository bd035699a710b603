"""Captured models in the ecosystem's interface: names, masks, decoding, and nothing superfluous."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tests.backends.onnx_graphs import CONFIG, compile_module, kinds_of, nodes_of, superfluous
from tests.core import tiny
from torch import Tensor

from seqmix.compile import compile
from seqmix.errors import BackendError
from seqmix.model import Model, flatten_states, initial_states, unflatten_states
from seqmix.state import StateSpec
from seqmix_ir import ops
from seqmix_ir.builder import Builder
from seqmix_ir.dims import dim
from seqmix_ir.graph import DimInfo, Graph, Value
from seqmix_ir.types import TensorType
from seqmix_onnxruntime.interface import to_ecosystem
from seqmix_onnxruntime.model_file import MODEL
from seqmix_onnxruntime.positions import check_past_positions
from seqmix_onnxruntime.session import OnnxExecutable

B, S, P = dim("B"), dim("S"), dim("P")
PURE = [tiny.ATTENTION, tiny.SWIGLU]


@pytest.fixture(scope="module")
def hybrid() -> tuple[Model, OnnxExecutable]:
    return _compiled(tiny.model())


@pytest.fixture(scope="module")
def pure() -> tuple[Model, OnnxExecutable]:
    return _compiled(tiny.model(PURE, tie_embeddings=False))


def _compiled(model: Model) -> tuple[Model, OnnxExecutable]:
    executable = compile(model, "onnxruntime", options={"threads": 1}, cache=False)
    assert isinstance(executable, OnnxExecutable)
    return model, executable


def _proto(executable: OnnxExecutable) -> Any:
    return onnx.load(executable.folder / MODEL)


def _shapes(values: Any) -> dict[str, list[Any]]:
    return {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values
    }


def test_names_follow_the_ecosystem(pure: tuple[Model, OnnxExecutable]) -> None:
    graph = _proto(pure[1]).graph
    cache = {f"{n}.{kind}": ["B", 1, None, 6] for n in (0, 1) for kind in ("key", "value")}
    assert _shapes(graph.input) == {
        "input_ids": ["B", "S"],
        "attention_mask": ["B", "P + S"],
        "position_ids": ["B", "S"],
        **{f"past_key_values.{n}": ["B", 1, "P", 6] for n in cache},
    }
    assert _shapes(graph.output) == {
        "logits": ["B", "S", tiny.VOCAB],
        **{f"present.{n}": ["B", 1, "P + S", 6] for n in cache},
    }


def test_a_window_keeps_its_positions_as_a_state(hybrid: tuple[Model, OnnxExecutable]) -> None:
    graph = _proto(hybrid[1]).graph
    names = set(_shapes(graph.input))
    assert {f"past_key_values.{n}.key_positions" for n in (1, 3)} <= names
    assert not {f"past_key_values.{n}.key_positions" for n in (0, 2)} & names
    assert _shapes(graph.output)["present.1.key"] == ["B", 2, 3, 6]


def _run(model: Model, ids: Tensor, positions: Tensor, states: dict[str, Tensor]) -> Any:
    logits, after = model(ids, positions, unflatten_states(model, states))
    return logits, flatten_states(model, after)


@pytest.mark.parametrize("sizes", [(1, 1, 0), (1, 1, 1), (2, 7, 0), (1, 9, 130), (3, 65, 1)])
def test_logits_and_states_at_untraced_sizes(
    hybrid: tuple[Model, OnnxExecutable], sizes: tuple[int, int, int]
) -> None:
    model, executable = hybrid
    batch, new, past = sizes
    ids, _ = tiny.tokens(batch, past + new)
    valid = torch.rand(batch, past + new, generator=torch.Generator().manual_seed(new)) < 0.7
    positions = torch.where(valid, valid.cumsum(1) - 1, -1)
    states = initial_states(model, batch)
    if past:
        _, states = _run(model, ids[:, :past], positions[:, :past], states)
    wanted, wanted_states = _run(model, ids[:, past:], positions[:, past:], states)
    logits, after = executable(ids[:, past:], positions[:, past:], states)
    seen = valid[:, past:]
    torch.testing.assert_close(logits[seen], wanted[seen], atol=2e-5, rtol=1e-4)
    assert set(after) == set(wanted_states)
    for name, tensor in wanted_states.items():
        torch.testing.assert_close(after[name], tensor, atol=2e-5, rtol=1e-4, msg=name)


def test_decoding_with_onnxruntime_alone(pure: tuple[Model, OnnxExecutable]) -> None:
    """As a foreign runtime does it: a growing mask, and present becomes past."""
    model, executable = pure
    session = onnxruntime.InferenceSession(
        executable.folder / MODEL, providers=["CPUExecutionProvider"]
    )
    ids, positions = tiny.tokens(2, 9)
    mask = np.ones((2, 9), np.int64)
    mask[1, :4] = 0
    places = np.maximum(mask.cumsum(1) - 1, 0)
    padded = torch.from_numpy(np.where(mask == 1, places, -1))
    wanted, _ = model(ids, padded)
    pasts = {f"past_key_values.{n}": np.zeros((2, 1, 0, 6), np.float32) for n in _caches()}
    found = []
    for part in (slice(0, 5), slice(5, 6), slice(6, 9)):
        feeds = {"input_ids": ids.numpy()[:, part], "position_ids": places[:, part]}
        feeds |= {"attention_mask": mask[:, : part.stop], **pasts}
        names = [output.name for output in session.get_outputs()]
        out = dict(zip(names, session.run(None, feeds), strict=True))
        found.append(torch.from_numpy(out["logits"]))
        pasts = {f"past_key_values.{n}": out[f"present.{n}"] for n in _caches()}
    keep = torch.from_numpy(mask == 1)
    torch.testing.assert_close(torch.cat(found, 1)[keep], wanted[keep], atol=2e-5, rtol=1e-4)
    assert positions.shape == ids.shape


def _caches() -> list[str]:
    return [f"{n}.{kind}" for n in (0, 1) for kind in ("key", "value")]


def test_the_file_tells_what_it_is(hybrid: tuple[Model, OnnxExecutable]) -> None:
    model, executable = hybrid
    properties = {p.key: p.value for p in _proto(executable).metadata_props}
    assert json.loads(properties["seqmix_config"])["vocab_size"] == tiny.VOCAB
    states = json.loads(properties["seqmix_states"])
    assert [sorted(layer) for layer in states] == [sorted(s) for s in model.state_specs()]
    assert states[1]["key_positions"]["fill"] == -1
    assert json.loads(properties["seqmix_interface"])["grown"] == [
        "state.0.key_positions",
        "state.2.key_positions",
    ]
    assert properties["seqmix_version"]


def test_only_standard_operators(hybrid: tuple[Model, OnnxExecutable]) -> None:
    proto = _proto(hybrid[1])
    assert [(o.domain, o.version) for o in proto.opset_import] == [("", 23)]
    assert {node.domain for node in proto.graph.node} == {""}


@pytest.mark.parametrize("which", ["hybrid", "pure"])
def test_no_node_is_dead_or_computed_twice(which: str, request: pytest.FixtureRequest) -> None:
    executable = request.getfixturevalue(which)[1]
    assert superfluous(_proto(executable)) == []


def test_masks_are_computed_once(hybrid: tuple[Model, OnnxExecutable]) -> None:
    kinds = Counter(node.op_type for node in nodes_of(hybrid[1]))
    # Each layer has two forms, of which the one for long prompts makes its masks block by block.
    assert kinds_of(hybrid[1])["Attention"] == 2 * 4
    # One for all layers without a window; a window's cache has positions of its own.
    assert kinds["ReduceMax"] == 1 + 2
    assert kinds["CumSum"] <= 1 + 2 * 4


def test_tied_embeddings_are_stored_once(hybrid: tuple[Model, OnnxExecutable]) -> None:
    proto = _proto(hybrid[1])
    names = [i.name for i in proto.graph.initializer]
    assert "embed.weight" in names
    assert "embed.weight.T" not in names
    (turn,) = [n for n in proto.graph.node if list(n.input) == ["embed.weight"]]
    assert turn.op_type == "Transpose"


def test_other_weights_are_stored_transposed(pure: tuple[Model, OnnxExecutable]) -> None:
    model, executable = pure
    arrays = {i.name: onnx.numpy_helper.to_array(i) for i in _proto(executable).graph.initializer}
    assert model.head is not None
    np.testing.assert_array_equal(arrays["head.weight.T"], model.head.weight.numpy().T)
    assert not any(node.op_type == "Transpose" for node in nodes_of(executable))


def test_a_model_without_growing_states_takes_the_mask_of_the_new_tokens() -> None:
    model, executable = _compiled(tiny.model([tiny.MLP], position=None, head_dim=None))
    assert _shapes(_proto(executable).graph.input)["attention_mask"] == ["B", "S"]
    ids, positions = tiny.tokens(2, 3)
    logits, states = executable(ids, positions)
    torch.testing.assert_close(logits, model(ids, positions)[0], atol=2e-5, rtol=1e-4)
    assert states == {}


def test_names_of_other_states() -> None:
    """Recurrent and convolution states by role, the rest by key; two of a role keep their keys."""
    specs = [
        {"memory": StateSpec(("B", 4), role="recurrent"), "tail": StateSpec(("B", 3), role="conv")},
        {"c": StateSpec(("B", 4), role="recurrent"), "n": StateSpec(("B", 4), role="recurrent")},
        {"stage": StateSpec(("B", 2))},
    ]
    ids, positions = (Value(TensorType("i64", (B, S)), n) for n in ("input_ids", "positions"))
    states = [
        Value(TensorType("f32", spec.shape(0, 0)), f"state.{i}.{key}")
        for i, layer in enumerate(specs)
        for key, spec in layer.items()
    ]
    b = Builder()
    logits = b(ops.Cast("f32"), b(ops.Add(), ids, positions))
    outputs = ("logits", *(s.hint for s in states))
    graph = Graph("forward", b.block([ids, positions, *states], [logits, *states]), outputs, ())
    _, interface = to_ecosystem(graph, specs)
    assert [interface.outputs[s.hint] for s in states] == [
        "present.0.recurrent_state",
        "present.0.conv_state",
        "present.1.c",
        "present.1.n",
        "present.2.stage",
    ]
    assert interface.inputs["state.0.memory"] == "past_key_values.0.recurrent_state"


def test_graphs_that_are_no_models_keep_their_names() -> None:
    x, positions = (
        Value(t, n)
        for t, n in (
            (TensorType("f32", (B, S, 2)), "x"),
            (TensorType("i64", (B, S)), "positions"),
        )
    )
    state = Value(TensorType("f32", (B, 2)), "state.0.h")
    b = Builder()
    y = b(ops.Add(), x, b(ops.Unsqueeze((1,)), state))
    block = b.block([x, positions, state], [y, b(ops.Neg(), state)])
    dims = (DimInfo("B"), DimInfo("S"))
    from seqmix_ir.graph import Module

    module = Module("m", (Graph("forward", block, ("y", "state.0.h"), dims),))
    executable = compile_module(module, config=CONFIG)
    assert list(_shapes(_proto(executable).graph.input)) == ["x", "positions", "state.0.h"]
    given = {
        "x": torch.ones(1, 2, 2),
        "positions": torch.zeros(1, 2, dtype=torch.int64),
        "state.0.h": torch.ones(1, 2),
    }
    out = executable.run("forward", given)
    assert set(out) == {"y", "state.0.h"}
    assert (out["state.0.h"] == -1).all()


def test_a_sequence_may_start_anywhere(pure: tuple[Model, OnnxExecutable]) -> None:
    model, executable = pure
    ids, positions = tiny.tokens(2, 7)
    positions = positions + 20
    _, states = executable(ids[:, :4], positions[:, :4])
    logits, _ = executable(ids[:, 4:], positions[:, 4:], states)
    torch.testing.assert_close(logits, model(ids, positions)[0][:, 4:], atol=2e-5, rtol=1e-4)


def test_positions_that_the_file_would_count_otherwise(pure: tuple[Model, OnnxExecutable]) -> None:
    _, executable = pure
    ids, positions = tiny.tokens(1, 5)
    _, states = executable(ids, positions.flip(1))
    with pytest.raises(BackendError, match=r"row 0 of the past has positions \[4, 3, 2, 1, 0\]"):
        executable(ids[:, :1], positions[:, :1] + 5, states)


def test_layers_with_different_positions(pure: tuple[Model, OnnxExecutable]) -> None:
    _, executable = pure
    ids, positions = tiny.tokens(1, 3)
    _, states = executable(ids, positions)
    states["state.1.key_positions"] = torch.tensor([[0, -1, 2]])
    with pytest.raises(BackendError, match="one mask for all layers"):
        executable(ids, positions + 3, states)


def test_where_counting_is_the_same() -> None:
    new = torch.tensor([[7]])
    counted = torch.tensor([[0, -1, 1, 2]])
    rising = torch.tensor([[2, -1, 4, 6]])
    check_past_positions(counted, new, by_order=False)
    check_past_positions(rising, new, by_order=True)
    check_past_positions(torch.zeros(1, 0, dtype=torch.int64), new, by_order=False)
    with pytest.raises(BackendError, match="must be 0, 1, 2"):
        check_past_positions(rising, new, by_order=False)
    with pytest.raises(BackendError, match="must rise"):
        check_past_positions(rising, torch.tensor([[5]]), by_order=True)


def test_key_positions_that_are_used_otherwise() -> None:
    """A graph that computes with the past's positions needs them counted from 0."""
    ids, positions = (Value(TensorType("i64", (B, S)), n) for n in ("input_ids", "positions"))
    past = Value(TensorType("i64", (B, P)), "state.0.key_positions")
    specs = [{"key_positions": StateSpec(("B", "P"), "i64", "key_positions", -1)}]
    for uses, by_order in (((), True), ((ops.Neg(),), False)):
        b = Builder()
        kept = b(ops.Concat(1), past, positions)
        results = [b(defn, kept) for defn in uses] or [ids]
        block = b.block([ids, positions, past], [*results, kept])
        graph = Graph("forward", block, ("logits", "state.0.key_positions"), ())
        assert to_ecosystem(graph, specs)[1].by_order is by_order
