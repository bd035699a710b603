"""Whole models captured from their state specs, re-run at lengths that were not traced."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.core.tiny import VOCAB, model, tokens

from seqmix.capture import capture, capture_model
from seqmix.model import initial_states
from seqmix_ir import Interpreter, parse, show, verify


def test_inputs_outputs_and_dims_follow_the_specs():
    graph = capture(model()).graph("forward")
    assert list(graph.inputs)[:4] == ["input_ids", "positions", "state.0.key", "state.0.value"]
    assert graph.outputs == ("logits", *list(graph.inputs)[2:])
    assert str(graph.inputs["state.0.key"].type) == "f32[B, 1, P, 6]"
    assert [(d.name, d.min) for d in graph.dims] == [("B", 1), ("S", 1), ("P", 0)]
    assert str(graph.results["state.0.key"].type) == "f32[B, 1, P + S, 6]"


def test_weights_are_those_of_the_model():
    made = model()
    found = capture_model(made).weights
    assert set(found) <= set(made.state_dict()) | {k for k, _ in made.named_buffers()}
    assert "head.weight" not in found
    assert found["embed.weight"].data_ptr() == made.embed.weight.data_ptr()


@pytest.mark.parametrize("keep", [0, 1])
def test_the_graph_is_the_model_at_any_length(keep):
    made = model()
    captured = capture_model(made, logits_to_keep=keep)
    verify(captured.module)
    assert show(parse(show(captured.module))) == show(captured.module)
    weights = {k: v.numpy() for k, v in captured.weights.items()}
    interpreter = Interpreter(captured.module, weights)
    for batch, length in [(1, 1), (2, 7), (3, 65)]:
        flat = {k: v.clone() for k, v in initial_states(made, batch).items()}
        for part in range(2):
            ids, positions = tokens(batch, length)
            positions = positions + part * length
            if length > 2:
                positions = positions.clone()
                positions[0, 1] = -1
            inputs = {"input_ids": ids, "positions": positions, **flat}
            out = interpreter.run("forward", {k: v.numpy() for k, v in inputs.items()})
            states = [
                {key: flat[f"state.{i}.{key}"] for key in specs}
                for i, specs in enumerate(made.state_specs())
            ]
            logits, after = made(ids, positions, states, keep)
            valid = positions[:, -logits.shape[1] :] >= 0
            np.testing.assert_allclose(
                out["logits"][valid.numpy()], logits[valid].numpy(), rtol=1e-4, atol=1e-4
            )
            flat = {f"state.{i}.{k}": v for i, s in enumerate(after) for k, v in s.items()}
            for name, value in flat.items():
                np.testing.assert_allclose(out[name], value.numpy(), rtol=1e-4, atol=1e-4)
    assert logits.shape[-1] == VOCAB


def test_locations_lead_into_the_model():
    graph = capture(model()).graph("forward")
    places = {str(op.loc).split(" ")[0] for op in graph.block.ops if op.name == "linear"}
    assert "steps.0.branches.0.mixer.query" in places
    assert not any(place.startswith("model.") for place in places)


def test_bf16_models_keep_their_dtype():
    graph = capture(model(dtype="bf16")).graph("forward")
    assert graph.results["logits"].type.dtype == "bf16"
    assert graph.inputs["state.0.key"].type.dtype == "bf16"
    assert torch.bfloat16 == model(dtype="bf16").dtype
