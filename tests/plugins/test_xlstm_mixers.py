"""The xLSTM mixers: the laws on every backend, 16-bit models, training piece by piece, errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from seqmix.config import build_config
from seqmix.context import Context
from seqmix.errors import ConfigError
from seqmix.mixer import SequenceMixer
from seqmix.model import Model, States
from seqmix.state import State, initial_state
from seqmix.testing import check_mixer
from seqmix_xlstm.families import xlstm_block_stack_config, xlstm_large_config
from seqmix_xlstm.mlstm_mixer import MLSTM
from seqmix_xlstm.mlstm_up_mixer import MLSTMUp
from seqmix_xlstm.slstm_mixer import SLSTM

MIXERS = [MLSTM, MLSTMUp, SLSTM]
WIDTH = 24


def build(cls: type[SequenceMixer], options: dict[str, Any], width: int = WIDTH) -> SequenceMixer:
    torch.manual_seed(3)
    return cls(build_config(cls.Config, options, "here"), width)


def fresh(mixer: SequenceMixer, batch: int) -> State:
    return initial_state(mixer.state_spec(), batch, dtype=next(mixer.parameters()).dtype)


def context(start: int, stop: int, batch: int = 2) -> Context:
    return Context(torch.arange(start, stop).expand(batch, -1))


@pytest.mark.full
@pytest.mark.parametrize("cls", MIXERS)
def test_laws_at_full_length_and_in_16_bits(cls: type[SequenceMixer]) -> None:
    check_mixer(cls, profile="full").raise_for_failures()


def test_states_are_float32_and_tails_are_of_the_model() -> None:
    keys = {"mlstm": {"recurrent", "m"}, "mlstm_up": {"recurrent", "m"}, "slstm": {*"hcnm"}}
    for cls, wanted in zip(MIXERS, keys.values(), strict=True):
        specs = build(cls, {"heads": 2}).state_spec()
        assert {key for key, spec in specs.items() if spec.dtype == "f32"} == wanted
        assert {key for key, spec in specs.items() if spec.dtype == "model"} == (
            set() if cls is MLSTM else {"conv"}
        )
    assert "conv" not in build(SLSTM, {"heads": 2, "conv_taps": 0}).state_spec()
    memory = build(MLSTM, {"heads": 3}).state_spec()["recurrent"]
    assert memory.axes == ("B", 3, 4, 9)


def models(dtype: str) -> list[Model]:
    """One of each family, with the same weights in every dtype."""
    configs = [
        xlstm_block_stack_config(31, 24, 2, slstm_at=[1], heads=2, round_up_to=8, dtype="f32"),
        xlstm_large_config(31, 24, 2, heads=3, dtype="f32"),
    ]
    made = []
    for config in configs:
        torch.manual_seed(5)
        source = Model(config)
        model = Model(config.model_copy(update={"dtype": dtype}))
        model.load_state_dict(source.state_dict())
        made.append(model)
    return made


def ids(batch: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 31, (batch, length), generator=generator)
    return tokens, torch.arange(length).expand(batch, -1)


@pytest.mark.parametrize("family", [0, 1])
@pytest.mark.parametrize(("dtype", "tolerance"), [("bf16", 4e-2), ("f16", 5e-3)])
def test_16_bit_models_run_and_train_on_the_cpu(family: int, dtype: str, tolerance: float) -> None:
    model, exact = models(dtype)[family], models("f32")[family]
    tokens, positions = ids(2, 9)
    logits, states = model(tokens, positions)
    wanted, _ = exact(tokens, positions)
    assert logits.dtype == model.dtype
    assert (logits.float() - wanted).abs().max() < tolerance * wanted.abs().max()
    for state, spec in zip(states, model.state_specs(), strict=True):
        for key, tensor in state.items():
            assert tensor.dtype == (torch.float32 if spec[key].dtype == "f32" else model.dtype)
    # Token by token, as when text is generated.
    states = None
    for t in range(9):
        last, states = model(tokens[:, t : t + 1], positions[:, t : t + 1], states)
    assert (last[:, 0].float() - wanted[:, -1]).abs().max() < tolerance * wanted.abs().max()
    logits.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("family", [0, 1])
def test_gradients_flow_through_states(family: int, dtype: str) -> None:
    """Two pieces whose state is handed on give the gradients of the whole sequence."""
    found, wanted = (models(dtype)[family] for _ in range(2))
    tokens, positions = ids(2, 10)
    wanted(tokens, positions)[0].square().sum().backward()
    first, states = found(tokens[:, :6], positions[:, :6])
    second, _ = found(tokens[:, 6:], positions[:, 6:], states)
    (first.square().sum() + second.square().sum()).backward()
    named = dict(wanted.named_parameters())
    # States are float32 in a float64 model too, and so is what is handed on.
    for name, parameter in found.named_parameters():
        size = named[name].grad.abs().max().clamp(min=1e-3)
        assert (parameter.grad - named[name].grad).abs().max() < 2e-5 * size, name


def detached(states: States) -> States:
    return [{key: t.detach() for key, t in state.items()} for state in states]


@pytest.mark.parametrize("family", [0, 1])
def test_truncated_backpropagation_through_time(family: int) -> None:
    """A pattern longer than a segment is learned with states that are handed on detached."""
    model = models("f32")[family]
    tokens, _ = ids(2, 8, seed=4)
    tokens = tokens.repeat(1, 4)
    positions = torch.arange(32).expand(2, -1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        states: States | None = None
        for start in range(0, 30, 6):
            piece = slice(start, start + 6)
            logits, after = model(tokens[:, piece], positions[:, piece], states)
            target = tokens[:, start + 1 : start + 7]
            short = logits[:, : target.shape[1]]
            loss = torch.nn.functional.cross_entropy(short.flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            states = detached(after)
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("cls", MIXERS)
def test_a_kept_state_can_be_continued_twice(cls: type[SequenceMixer]) -> None:
    """A prompt's state is read, never written: two answers may follow from it."""
    mixer = build(cls, cls.examples()[0])
    x = torch.randn(2, 8, WIDTH)
    _, prompt = mixer(x[:, :4], fresh(mixer, 2), context(0, 4))
    kept = {key: t.clone() for key, t in prompt.items()}
    one, _ = mixer(x[:, 4:], prompt, context(4, 8))
    mixer(3 * x[:, 4:], prompt, context(4, 8))
    again, _ = mixer(x[:, 4:], prompt, context(4, 8))
    assert torch.equal(one, again)
    assert all(torch.equal(prompt[key], kept[key]) for key in kept)


@pytest.mark.parametrize("cls", MIXERS)
def test_a_row_does_not_depend_on_its_batch(cls: type[SequenceMixer]) -> None:
    """A fresh row beside one that goes on, with gates far below anything the other has seen."""
    mixer = build(cls, cls.examples()[0])
    bias = mixer.bias[:, 0] if isinstance(mixer, SLSTM) else mixer.input_gate.bias
    with torch.no_grad():
        bias.sub_(110)
    x = torch.randn(1, 5, WIDTH)
    _, past = mixer(torch.randn(1, 3, WIDTH), fresh(mixer, 1), context(0, 3, 1))
    alone, _ = mixer(x, fresh(mixer, 1), context(0, 5, 1))
    start = {key: torch.cat([t, past[key]]) for key, t in fresh(mixer, 1).items()}
    both, _ = mixer(x.expand(2, -1, -1), start, context(0, 5))
    assert both.isfinite().all()
    assert (both[:1] - alone).abs().max() < 1e-5


def test_the_gradient_through_r_is_clipped() -> None:
    """The paper's +-10 is on, and 0 turns it off; without R it changes nothing."""
    gradients = {}
    for clip in (10.0, 0.0):
        mixer = build(SLSTM, {"heads": 3, "clip": clip})
        with torch.no_grad():
            mixer.recurrent.uniform_(-3, 3, generator=torch.Generator().manual_seed(0))
        x = torch.linspace(-2, 2, 2 * 9 * WIDTH).reshape(2, 9, WIDTH).requires_grad_()
        (1e4 * mixer(x, fresh(mixer, 2), context(0, 9))[0]).square().sum().backward()
        gradients[clip] = x.grad
    assert not torch.allclose(gradients[10.0], gradients[0.0], rtol=1e-2)


def test_flops_are_linear_in_tokens_and_count_the_projections() -> None:
    for cls in MIXERS:
        mixer = build(cls, {"heads": 2})
        assert mixer.flops(2, 30) == 60 * mixer.flops(1, 1)
    # q, k 24 x 12, v, o and output 24 x 24, gates 24 x 2, and 2 heads of 6 x 13, twice.
    wanted = 2 * (2 * 24 * 12 + 3 * 24 * 24 + 2 * 24 * 2 + 2 * 2 * 6 * 13)
    assert build(MLSTM, {"heads": 2}).flops(1, 1) == wanted
    # Four gates of 2 blocks of 12 x 12 from x, the same from h, four taps.
    assert build(SLSTM, {"heads": 2}).flops(1, 1) == 2 * (2 * 4 * 2 * 12 * 12 + 24 * 4)


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (MLSTM, {"heads": 5}, "qk_dim_factor * width is 12, which is no multiple of"),
        (MLSTM, {"heads": 3, "v_dim_factor": 0.1}, "v_dim_factor * width is 2, which is no"),
        (MLSTM, {"heads": 3, "qk_dim_factor": 0.01}, "qk_dim_factor * width is 0, which is no"),
        (MLSTM, {"heads": 3, "normalize": False}, "normalize = false needs input_gate = 'sigmoid'"),
        (MLSTM, {"heads": 3, "gate_soft_cap": -1}, "gate_soft_cap: "),
        (MLSTM, {"head": 3}, "did you mean 'heads'"),
        (MLSTMUp, {"heads": 5}, "inner width is 64, which is no multiple of heads = 5"),
        (MLSTMUp, {"qkv_block_size": 7}, "inner width is 64, which is no multiple of qkv_block_si"),
        (MLSTMUp, {"proj_factor": 0}, "proj_factor: "),
        (SLSTM, {"heads": 5}, "width is 24, which is no multiple of heads = 5"),
        (SLSTM, {"block": 2, "blocks": 2}, "block = 2 must be below blocks = 2"),
        (SLSTM, {"clip": -1}, "clip: "),
        (SLSTM, {"forget_gate": "relu"}, "forget_gate: "),
    ],
)
def test_options_that_do_not_fit(cls: type[SequenceMixer], options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(cls, options)
    assert message in str(caught.value)
