"""RWKV-4 against other implementations and its definition, at any exponents, in pieces."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.plugins.recurrent_cases import (
    at_once,
    build,
    by_steps,
    check_16_bits,
    check_pieces_train_alike,
    fresh,
    golden,
)
from torch import Tensor

from seqmix.context import Context
from seqmix.errors import ConfigError
from seqmix.mixer import SequenceMixer
from seqmix.state import state_bytes
from seqmix.testing import check_mixer
from seqmix_gated_conv.rwkv4_channel_mix import ChannelMix
from seqmix_gated_conv.rwkv4_time_mix import TimeMix
from seqmix_gated_conv.token_shift import shift_tokens
from seqmix_gated_conv.wkv4 import NOTHING_YET, wkv4

MIXERS = [TimeMix, ChannelMix]
F64 = torch.float64


def like(mixer: SequenceMixer, weights: dict[str, Tensor]) -> SequenceMixer:
    """The mixer with the weights of another implementation, which has some axes of size 1 more."""
    shapes = {name: p.shape for name, p in mixer.named_parameters()}
    mixer.load_state_dict({name: w.reshape(shapes[name]) for name, w in weights.items()})
    return mixer


def values(file: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix("p."): t for key, t in file.items() if key.startswith("p.")}


@pytest.mark.full
@pytest.mark.parametrize("cls", MIXERS)
def test_laws_at_full_length_and_in_16_bits(cls: type[SequenceMixer]) -> None:
    check_mixer(cls, profile="full").raise_for_failures()


def test_time_mixing_is_that_of_the_golden_values() -> None:
    file = golden("rwkv4_timemix")
    mixer = like(build(TimeMix, {}, 8), values(file))
    for found, after in (at_once(mixer, file["x"]), by_steps(mixer, file["x"])):
        torch.testing.assert_close(found, file["y"], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found, file["y_rnn"], rtol=1e-5, atol=1e-5)
        cell = torch.stack([after[key][0] for key in ("aa", "bb", "pp")])
        torch.testing.assert_close(cell, file["final_state_b0_aa_bb_pp"], rtol=1e-5, atol=1e-5)
        assert torch.equal(after["shift"], file["x"][:, -1])
    odd, _ = at_once(mixer, file["x"][:, :13])
    torch.testing.assert_close(odd, file["y"][:, :13], rtol=1e-5, atol=1e-5)


def test_channel_mixing_is_that_of_the_golden_values() -> None:
    file = golden("rwkv4_channelmix")
    mixer = like(build(ChannelMix, {"hidden": 32}, 8), values(file))
    for found, _ in (at_once(mixer, file["x"]), by_steps(mixer, file["x"])):
        torch.testing.assert_close(found, file["y"], rtol=1e-5, atol=1e-5)


def average(k: Tensor, v: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """The definition, for each token a sum over all before; exponents never leave the softmax."""
    rows = [a.double().numpy() for a in (k, v, w, u)]
    k_, v_, w_, u_ = rows
    y = np.empty_like(v_)
    for t in range(k_.shape[1]):
        age = np.arange(t - 1, -1, -1)[None, :, None]
        exponents = np.concatenate([age * w_ + k_[:, :t], u_ + k_[:, t : t + 1]], axis=1)
        weights = np.exp(exponents - exponents.max(1, keepdims=True))
        y[:, t] = (weights * v_[:, : t + 1]).sum(1) / weights.sum(1)
    return torch.from_numpy(y)


def cell(batch: int, channels: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    zeros = torch.zeros(batch, channels, dtype=dtype)
    return zeros, zeros.clone(), torch.full_like(zeros, NOTHING_YET)


@pytest.mark.parametrize("length", [1, 2, 63, 65, 130])
@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-11), (torch.float32, 5e-4)])
def test_wkv_at_any_exponents(length: int, dtype: torch.dtype, tolerance: float) -> None:
    """Keys far outside of what exp can hold, memories that last and memories of one token.

    A float32 exponent of 1000 is itself known to 6e-5 only.
    """
    generator = torch.Generator().manual_seed(length)
    k, v = torch.randn(2, 2, length, 5, generator=generator, dtype=dtype)
    k = k * torch.tensor([1.0, 30.0, 300.0, 1e3, 1e-3], dtype=dtype)
    w = -torch.exp(torch.tensor([-9.0, -2.0, 0.0, 3.0, 5.0], dtype=dtype))
    u = torch.tensor([0.5, -40.0, 90.0, 0.0, -1e3], dtype=dtype)
    y, after = wkv4(k, v, w, u, cell(2, 5, dtype), None)
    assert all(t.isfinite().all() for t in (y, *after))
    torch.testing.assert_close(y.double(), average(k, v, w, u), rtol=tolerance, atol=tolerance)
    # Nothing is averaged to outside of what is averaged.
    assert (y.abs() <= v.abs().amax(1, keepdim=True) * (1 + 1e-5)).all()


def test_padding_of_any_content_has_no_gradient_and_no_nan() -> None:
    """In front of everything too, where there is nothing to average."""
    mixer = build(TimeMix, {}, dtype=F64)
    places = torch.tensor([[-1, -1, 0, -1, 1, 2], [-1, -1, -1, -1, -1, -1]])
    x = torch.randn(2, 6, 24, dtype=F64)
    x[places < 0] = 1e4
    x.requires_grad_()
    y, after = mixer(x, fresh(mixer, 2), Context(places))
    plain, state = at_once(mixer, x[:1, [2, 4, 5]])
    torch.testing.assert_close(y[0, [2, 4, 5]], plain[0])
    assert all(torch.allclose(after[key][0], state[key][0]) for key in state)
    assert all(torch.equal(after[key][1], fresh(mixer, 1)[key][0]) for key in state)
    loss = y.square().sum() + after["aa"].sum() + after["bb"].sum()
    grads = torch.autograd.grad(loss, [x, *mixer.parameters()])
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[0][places < 0] == 0).all()


def test_tokens_are_shifted_past_padding() -> None:
    x = torch.arange(1.0, 7).reshape(1, 6, 1)
    valid = torch.tensor([[True, False, False, True, True, False]])
    before, last = shift_tokens(x, torch.tensor([[9.0]]), valid)
    assert before.flatten().tolist() == [9, 1, 1, 1, 4, 5]
    assert last.tolist() == [[5.0]]
    before, last = shift_tokens(x, torch.tensor([[9.0]]), None)
    assert before.flatten().tolist() == [9, 1, 2, 3, 4, 5]
    assert last.tolist() == [[6.0]]
    _, last = shift_tokens(x, torch.tensor([[9.0]]), torch.zeros(1, 6, dtype=torch.bool))
    assert last.tolist() == [[9.0]]


@pytest.mark.parametrize("cls", MIXERS)
@pytest.mark.parametrize("example", [0, 1])
def test_pieces_train_like_the_whole(cls: type[SequenceMixer], example: int) -> None:
    check_pieces_train_alike(build(cls, cls.examples()[example], dtype=F64), 24)


@pytest.mark.parametrize("kind", ["rwkv4_time_mix", "rwkv4_channel_mix"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("bf16", 4e-2), ("f16", 5e-3)])
def test_16_bit_models_run_and_train_on_the_cpu(kind: str, dtype: str, tolerance: float) -> None:
    check_16_bits(kind, {}, dtype, tolerance)


def test_what_is_remembered_has_one_size() -> None:
    specs = build(TimeMix, {"inner": 11}).state_spec()
    assert {key: spec.axes for key, spec in specs.items()} == {
        "shift": ("B", 24),
        "aa": ("B", 11),
        "bb": ("B", 11),
        "pp": ("B", 11),
    }
    mixer = build(TimeMix, {})
    _, after = at_once(mixer, torch.randn(3, 50, 24))
    size = sum(t.numel() * t.element_size() for t in after.values())
    assert size == 3 * 4 * 24 * 4 == state_bytes(mixer.state_spec(), 3, 50, dtype=torch.float32)
    half = build(TimeMix, {}).state_spec()
    assert state_bytes(half, 1, 50, dtype=torch.bfloat16) == 24 * 2 + 3 * 24 * 4
    assert build(ChannelMix, {}).state_spec().keys() == {"shift"}


def raw(cls: type[SequenceMixer], width: int, **options: Any) -> Any:
    return cls(cls.Config(**options), width)


def test_fresh_time_mixing_depends_on_channel_and_depth() -> None:
    first, last = (raw(TimeMix, 4, block=b, blocks=3) for b in (0, 2))
    ramp = torch.tensor([0.0, 0.25, 0.5, 0.75])
    torch.testing.assert_close(first.time_mix_key.data, ramp)
    torch.testing.assert_close(first.time_mix_value.data, ramp)
    torch.testing.assert_close(first.time_mix_receptance.data, ramp**0.5)
    torch.testing.assert_close(last.time_mix_key.data, ramp ** (1 / 3))
    torch.testing.assert_close(last.time_mix_value.data, ramp ** (1 / 3) + 0.3)
    torch.testing.assert_close(last.time_mix_receptance.data, ramp ** (1 / 6))
    thirds = torch.tensor([0.0, 1 / 3, 2 / 3, 1.0])
    torch.testing.assert_close(first.time_decay.data, -5 + 8 * thirds**0.7)
    torch.testing.assert_close(last.time_decay.data, -5 + 8 * thirds**2.0)
    wanted = math.log(0.3) + torch.tensor([0.0, 0.5, -0.5, 0.0])
    torch.testing.assert_close(first.time_first.data, wanted)
    assert not any(layer.weight.any() for layer in (first.key, first.receptance, first.output))
    product = first.value.weight @ first.value.weight.mT
    torch.testing.assert_close(product, torch.eye(4))


def test_fresh_channel_mixing_depends_on_channel_and_depth() -> None:
    mixer = raw(ChannelMix, 4, block=1, blocks=4)
    ramp = torch.tensor([0.0, 0.25, 0.5, 0.75]) ** 0.75
    torch.testing.assert_close(mixer.time_mix_key.data, ramp)
    torch.testing.assert_close(mixer.time_mix_receptance.data, ramp)
    assert not mixer.receptance.weight.any()
    assert not mixer.value.weight.any()
    # Orthogonal columns, twice as long because there are four times as many rows.
    product = mixer.key.weight.mT @ mixer.key.weight
    torch.testing.assert_close(product, 4 * torch.eye(4))


@pytest.mark.parametrize("cls", MIXERS)
def test_a_single_block_and_a_single_channel_are_no_division_by_zero(
    cls: type[SequenceMixer],
) -> None:
    mixer = raw(cls, 1, block=0, blocks=1)
    assert all(p.isfinite().all() for p in mixer.parameters())
    y, _ = mixer(torch.ones(1, 3, 1), fresh(mixer, 1), Context(torch.arange(3).unsqueeze(0)))
    assert y.shape == (1, 3, 1)


def test_a_fresh_model_learns_although_it_starts_at_zero() -> None:
    """Output and gates start at 0; the first steps must get them away from there."""
    torch.manual_seed(0)
    mixer = raw(TimeMix, 6)
    x, target = torch.randn(4, 8, 6), torch.randn(4, 8, 6)
    optimizer = torch.optim.Adam(mixer.parameters(), lr=3e-2)
    losses = []
    for _ in range(40):
        loss = (at_once(mixer, x)[0] - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert all(p.grad.abs().max() > 0 for p in mixer.parameters())


def test_transformers_computes_the_same() -> None:
    """Its loop over the tokens and its feed-forward, with odd inner widths."""
    module = pytest.importorskip(
        "transformers.models.rwkv.modeling_rwkv", reason="compares with transformers"
    )
    from transformers import RwkvConfig

    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "vocab_size": 5}
    peer = module.RwkvSelfAttention(RwkvConfig(attention_hidden_size=10, **sizes), 0)
    mixer = build(TimeMix, {"inner": 10})
    shapes = {name: p.shape for name, p in peer.named_parameters()}
    peer.load_state_dict({n: p.reshape(shapes[n]) for n, p in mixer.state_dict().items()})
    x = torch.randn(2, 70, 24)
    with torch.no_grad():
        wanted, _ = peer(x)
    torch.testing.assert_close(at_once(mixer, x)[0].detach(), wanted, rtol=2e-5, atol=2e-5)
    narrow = module.RwkvFeedForward(RwkvConfig(intermediate_size=9, **sizes), 0)
    mixer = build(ChannelMix, {"hidden": 9})
    shapes = {name: p.shape for name, p in narrow.named_parameters()}
    narrow.load_state_dict({n: p.reshape(shapes[n]) for n, p in mixer.state_dict().items()})
    torch.testing.assert_close(at_once(mixer, x)[0], narrow(x)[0], rtol=2e-5, atol=2e-5)


def test_flops_are_those_of_the_linear_layers() -> None:
    assert build(TimeMix, {}).flops(2, 30) == 60 * 2 * 4 * 24 * 24
    assert build(TimeMix, {"inner": 11}).flops(1, 1) == 2 * 4 * 24 * 11
    assert build(ChannelMix, {}).flops(2, 30) == 60 * 2 * (2 * 24 * 96 + 24 * 24)
    assert build(ChannelMix, {}).step_flops(1, 77) == 2 * (2 * 24 * 96 + 24 * 24)


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (TimeMix, {"block": 2, "blocks": 2}, "block = 2 must be below blocks = 2"),
        (TimeMix, {"inner": 0}, "inner: "),
        (TimeMix, {"iner": 4}, "did you mean 'inner'"),
        (ChannelMix, {"block": 1}, "block = 1 must be below blocks = 1"),
        (ChannelMix, {"hiden": 4}, "did you mean 'hidden'"),
    ],
)
def test_options_that_do_not_fit(cls: type[SequenceMixer], options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(cls, options)
    assert message in str(caught.value)
