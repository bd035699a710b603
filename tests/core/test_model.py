"""The model keeps the laws, says what is wrong with its arguments, and counts itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.core import tiny

from seqmix.context import Context
from seqmix.errors import ConfigError, PluginError
from seqmix.model import Model, flatten_states, initial_states, unflatten_states

LENGTH = 9


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model(dtype="f64")


@pytest.mark.parametrize("split", range(1, LENGTH))
def test_splitting(model: Model, split: int) -> None:
    ids, positions = tiny.tokens(2, LENGTH)
    whole, end = model(ids, positions)
    first, states = model(ids[:, :split], positions[:, :split])
    second, after = model(ids[:, split:], positions[:, split:], states)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, atol=1e-12, rtol=0)
    for name, tensor in flatten_states(model, end).items():
        torch.testing.assert_close(flatten_states(model, after)[name], tensor, atol=1e-12, rtol=0)


def test_splitting_token_by_token(model: Model) -> None:
    ids, positions = tiny.tokens(2, LENGTH)
    whole, _ = model(ids, positions)
    states = None
    for t in range(LENGTH):
        step, states = model(ids[:, t : t + 1], positions[:, t : t + 1], states)
        torch.testing.assert_close(step[:, 0], whole[:, t], atol=1e-12, rtol=0)


@pytest.mark.parametrize("where", ["left", "right", "middle"])
@pytest.mark.parametrize("gap", [1, 3, 6])
def test_padding(model: Model, where: str, gap: int) -> None:
    ids, positions = tiny.tokens(1, LENGTH)
    expected, end = model(ids, positions)
    wide, at = tiny.padded(ids[0], LENGTH + gap, where)
    logits, states = model(wide, at)
    torch.testing.assert_close(logits[at >= 0], expected[0], atol=1e-12, rtol=0)
    step, here = torch.tensor([[5]]), torch.tensor([[LENGTH]])
    after, _ = model(step, here, states)
    alone, _ = model(step, here, end)
    torch.testing.assert_close(after, alone, atol=1e-12, rtol=0)


def test_padding_does_not_evict_from_a_window(model: Model) -> None:
    ids, positions = tiny.tokens(1, LENGTH)
    _, states = model(ids, positions)
    hole = torch.full((1, 5), -1)
    _, after = model(torch.zeros(1, 5, dtype=torch.int64), hole, states)
    for layer, spec in enumerate(model.state_specs()):
        if not spec["key"].grows:
            for key in spec:
                assert torch.equal(after[layer][key], states[layer][key]), (layer, key)


def test_a_short_window_state_leaves_no_trace_of_padding(model: Model) -> None:
    ids, positions = tiny.padded(torch.tensor([3]), 4, "right")
    _, states = model(ids, positions)
    windowed = [s for s, spec in zip(states, model.state_specs(), strict=True)
                if not spec["key"].grows]  # fmt: skip
    assert len(windowed) == 2
    for state in windowed:
        assert state["key_positions"].tolist() == [[-1, -1, 0]]
        assert not state["key"][:, :, :2].any()
        assert not state["value"][:, :, :2].any()


def test_rows_do_not_touch_each_other(model: Model) -> None:
    ids, positions = tiny.tokens(3, LENGTH)
    logits, _ = model(ids, positions)
    for row in range(3):
        alone, _ = model(ids[row : row + 1], positions[row : row + 1])
        torch.testing.assert_close(logits[row : row + 1], alone, atol=1e-12, rtol=0)


def test_causality_is_bitwise(model: Model) -> None:
    ids, positions = tiny.tokens(1, LENGTH)
    before, _ = model(ids, positions)
    for t in range(1, LENGTH):
        changed = ids.clone()
        changed[0, t] = (changed[0, t] + 1) % tiny.VOCAB
        after, _ = model(changed, positions)
        assert torch.equal(before[:, :t], after[:, :t])
        assert not torch.equal(before[:, t:], after[:, t:])


def test_purity(model: Model) -> None:
    ids, positions = tiny.tokens(2, 5)
    _, states = model(ids, positions)
    kept = [{k: v.clone() for k, v in state.items()} for state in states]
    first, _ = model(ids, positions + 5, states)
    second, _ = model(ids, positions + 5, states)
    assert torch.equal(first, second)
    for state, copy in zip(states, kept, strict=True):
        assert all(torch.equal(state[k], copy[k]) for k in copy)


def test_logits_to_keep(model: Model) -> None:
    ids, positions = tiny.tokens(2, 5)
    everything, _ = model(ids, positions)
    last, _ = model(ids, positions, None, 2)
    assert last.shape == (2, 2, tiny.VOCAB)
    torch.testing.assert_close(last, everything[:, -2:])


def test_parallel_branches_share_their_input() -> None:
    model = tiny.model([[tiny.SWIGLU, tiny.MLP]], position=None, head_dim=None)
    ids, positions = tiny.tokens(1, 3)
    ctx, x = Context(positions), model.embed(ids)
    branches = list(model.branches())
    for step in (branches[:2], branches[2:]):
        x = x + sum(branch(x, {}, ctx)[0] for branch in step)
    logits = torch.nn.functional.linear(model.norm(x), model.embed.weight)
    torch.testing.assert_close(model(ids, positions)[0], logits)


def test_gradients_reach_every_parameter() -> None:
    model = tiny.model(tie_embeddings=False, norm={"kind": "layer"}).requires_grad_(True)
    ids, positions = tiny.tokens(2, 5)
    model(ids, positions)[0].square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        # A key bias shifts all logits of a row alike: softmax does not see it.
        assert parameter.grad.abs().max() > 0 or name.endswith("key.bias"), name


def test_names_and_counts() -> None:
    model = tiny.model(tie_embeddings=False)
    names = set(model.state_dict())
    assert {"embed.weight", "norm.weight", "head.weight"} <= names
    assert "steps.0.branches.0.mixer.query.weight" in names
    assert "steps.4.branches.1.mixer.down.weight" in names
    assert "steps.1.branches.0.norm.weight" in names
    assert "head.weight" not in tiny.model().state_dict()
    assert model.parameter_count() == sum(t.numel() for t in model.state_dict().values())
    assert [b.layer for b in model.branches()] == [0, 1, None, None, 2, 3, None, None]


def test_flops_of_one_branch() -> None:
    model = tiny.model([tiny.SWIGLU], position=None, head_dim=None)
    per_token = 2 * 2 * 3 * 10 * 17 + 2 * 10 * tiny.VOCAB
    assert model.flops(3, 7) == 3 * 7 * per_token


def test_initial_states_need_no_model() -> None:
    config = tiny.config(dtype="bf16")
    flat = initial_states(config, 2)
    model = Model(config)
    again = initial_states(model, 2)
    assert list(flat) == list(again) == list(flatten_states(model, unflatten_states(model, again)))
    assert flat["state.0.key"].shape == (2, 1, 0, 6)
    assert flat["state.0.key"].dtype == torch.bfloat16
    assert flat["state.1.key"].shape == (2, 2, 3, 6)
    assert flat["state.1.key_positions"].tolist() == [[-1] * 3] * 2
    assert all(torch.equal(flat[n], again[n]) for n in flat)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f64"])
def test_dtypes(dtype: str) -> None:
    model = tiny.model(dtype=dtype)
    ids, positions = tiny.tokens(1, 5)
    logits, states = model(ids, positions)
    assert logits.dtype == model.dtype == states[0]["key"].dtype
    exact, _ = model.double()(ids, positions)
    tolerance = {"bf16": 0.15, "f16": 0.02, "f64": 1e-12}[dtype]
    assert (logits.double() - exact).abs().max() < tolerance * exact.abs().max()


def bad_arguments() -> list[Any]:
    ids, positions = tiny.tokens(2, 4)
    return [
        pytest.param(ids.float(), positions, "input_ids should be int64", id="dtype"),
        pytest.param(ids[0], positions[0], r"\[B, S\]", id="rank"),
        pytest.param(ids[:, :0], positions[:, :0], "S >= 1", id="empty"),
        pytest.param(ids[:0], positions[:0], "B >= 1", id="no row"),
        pytest.param(ids.tolist(), positions, "input_ids should be a tensor, .*list", id="list"),
        pytest.param(ids, None, "positions should be a tensor, found None", id="none"),
        pytest.param(ids, positions[:, :3], "shape of", id="shape"),
        pytest.param(ids + tiny.VOCAB, positions, r"0\.\.52", id="range"),
        pytest.param(ids - 99, positions, "found -", id="negative"),
    ]


@pytest.mark.parametrize(("ids", "positions", "message"), bad_arguments())
def test_bad_arguments(model: Model, ids: Any, positions: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model(ids, positions, unflatten_states(model, initial_states(model, 2)))


def test_bad_states(model: Model) -> None:
    ids, positions = tiny.tokens(2, 4)
    _, states = model(ids, positions)
    with pytest.raises(ConfigError, match="expected 4 states, one per layer that has one, found 3"):
        model(ids, positions, states[:3])
    with pytest.raises(ConfigError, match=r"layer 1.*expected state.*found"):
        model(ids, positions, [states[0], {}, *states[2:]])
    with pytest.raises(ConfigError, match="layer 0: state 'key' should be"):
        model(ids[:1], positions[:1], states)
    short = {k: v[:, :, :2] if v.ndim == 4 else v[:, :2] for k, v in states[2].items()}
    with pytest.raises(ConfigError, match=r"P is 4 in state\.0\.key, but 2 in state\.2\.key"):
        model(ids, positions, [*states[:2], short, states[3]])
    with pytest.raises(ConfigError, match="layer 0: state 'key' should be a tensor"):
        model(ids, positions, [{**states[0], "key": None}, *states[1:]])
    with pytest.raises(ConfigError, match=r"states should be a list .* one mapping; .*unflat"):
        model(ids, positions, flatten_states(model, states))
    with pytest.raises(ConfigError, match=r"missing \['state\.0\.key"):
        unflatten_states(model, {})


def test_configurations_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="needs 'head_dim'"):
        tiny.model(head_dim=None)
    with pytest.raises(ConfigError, match=r"head_dim 6.*built for head_dim 8"):
        tiny.model(head_dim=8)
    with pytest.raises(ConfigError, match=r"mixer 'swiglu': unknown key 'hiden'.*'hidden'"):
        tiny.model([{"kind": "swiglu", "hiden": 3}])
    with pytest.raises(ConfigError, match="3 is no multiple of kv_heads = 2"):
        tiny.model([{**tiny.ATTENTION, "kv_heads": 2}])
    with pytest.raises(PluginError, match="swiglu"):
        tiny.model([{"kind": "swigl", "hidden": 3}])


def test_fresh_weights_follow_the_seed() -> None:
    torch.manual_seed(3)
    first = Model(tiny.config())
    torch.manual_seed(3)
    second = Model(tiny.config())
    third = Model(tiny.config())
    assert torch.equal(first.embed.weight, second.embed.weight)
    assert not torch.equal(first.embed.weight, third.embed.weight)
    wide = Model(tiny.config([{"kind": "swiglu", "hidden": 999}])).state_dict()
    assert 0.018 < float(wide["steps.0.branches.0.mixer.up.weight"].std()) < 0.022
