"""The linear attention mixer against Based, its definition and attention by sums."""

from __future__ import annotations

import pytest
import torch
from tests.plugins.recurrent_cases import (
    at_once,
    build,
    by_steps,
    check_16_bits,
    check_pieces_train_alike,
    golden,
)
from torch import Tensor

from seqmix.errors import ConfigError
from seqmix.state import state_bytes
from seqmix.testing import check_mixer
from seqmix_gated_conv.feature_maps import FEATURE_MAPS, Elu, Taylor
from seqmix_gated_conv.linear_attention import LinearAttention

F64 = torch.float64


@pytest.mark.full
def test_laws_at_full_length_and_in_16_bits() -> None:
    check_mixer(LinearAttention, profile="full").raise_for_failures()


def test_based_is_that_of_the_golden_values() -> None:
    file = golden("based_taylor")
    mixer = build(LinearAttention, {"heads": 2, "feature_dim": 4}, 8)
    names = {"proj_q": "query", "proj_k": "key", "proj_v": "value", "proj_o": "output"}
    weights = {f"{ours}.weight": file[f"p.{peer}.weight"] for peer, ours in names.items()}
    mixer.load_state_dict(weights)
    for found, _ in (at_once(mixer, file["x"]), by_steps(mixer, file["x"])):
        torch.testing.assert_close(found, file["y"], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found, file["y_quadratic"], rtol=1e-5, atol=1e-5)
    odd, _ = at_once(mixer, file["x"][:, :13])
    torch.testing.assert_close(odd, file["y"][:, :13], rtol=1e-5, atol=1e-5)


def test_taylor_features_are_those_of_based_with_each_pair_once() -> None:
    """The golden 1 + 4 + 16 features of random numbers; each pair of unlike ones is there twice."""
    peer = golden("based_taylor")["phi_x4"].double()
    x = peer[..., 1:5] * 4**0.25
    ours = Taylor(4).to(F64)(x)
    assert ours.shape[-1] == 1 + 4 + 10
    torch.testing.assert_close(ours @ ours.mT, peer @ peer.mT, rtol=1e-5, atol=1e-6)
    pairs = peer[..., 5:].unflatten(-1, (4, 4))
    twice = torch.where(torch.eye(4, dtype=torch.bool), 1.0, 2**0.5) * pairs
    i, j = torch.triu_indices(4, 4)
    wanted = torch.cat([peer[..., :5], twice[..., i, j]], -1)
    torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 3, 16])
def test_taylor_similarity_is_exp_to_second_order(size: int) -> None:
    features = Taylor(size).to(F64)
    q, k = torch.randn(2, 9, size, dtype=F64)
    s = (q * k).sum(-1) / size**0.5
    found = (features(q) * features(k)).sum(-1)
    torch.testing.assert_close(found, 1 + s + s.square() / 2, rtol=1e-12, atol=1e-12)
    assert features.size == features(q).shape[-1] == 1 + size + size * (size + 1) // 2


def test_no_cast_spoils_the_tables_of_the_taylor_features() -> None:
    features = Taylor(6)
    exact = {key: table.clone() for key, table in features.named_buffers()}
    there_and_back = features.to(torch.bfloat16).to(torch.float16).to(torch.float32)
    assert all(torch.equal(t, exact[key]) for key, t in there_and_back.named_buffers())
    wide = features.to(F64).left
    assert wide.dtype == F64
    assert (wide.float() == exact["left"]).all()
    assert (wide != exact["left"].double()).any()
    assert not Taylor(6).state_dict()


def test_elu_features_are_positive_far_below_zero_too() -> None:
    x = torch.tensor([-80.0, -1.0, 0.0, 2.0], dtype=F64)
    wanted = torch.where(x > 0, x + 1, x.exp())
    torch.testing.assert_close(Elu(4)(x), wanted, rtol=1e-9, atol=1e-16)
    assert FEATURE_MAPS["elu"](7).size == 7


def by_sums(mixer: LinearAttention, x: Tensor) -> Tensor:
    """The definition: similarities of all pairs, heads that share keys written out."""

    def heads(layer: torch.nn.Module, count: int) -> Tensor:
        found = layer(x).unflatten(2, (count, -1)).transpose(1, 2)
        return found.repeat_interleave(mixer.heads // count, dim=1)

    q, k = heads(mixer.query, mixer.heads), heads(mixer.key, mixer.kv_heads)
    v = heads(mixer.value, mixer.kv_heads)
    if isinstance(mixer.features, Taylor):
        s = q @ k.mT / q.shape[-1] ** 0.5
        similarity = 1 + s + s.square() / 2
    else:
        similarity = torch.where(q > 0, q + 1, q.exp()) @ torch.where(k > 0, k + 1, k.exp()).mT
    weights = similarity.tril()
    weights = weights / weights.sum(-1, keepdim=True)
    return mixer.output((weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("example", range(len(LinearAttention.examples())))
@pytest.mark.parametrize("length", [1, 2, 65, 130])
def test_it_is_attention_by_its_own_similarity(example: int, length: int) -> None:
    mixer = build(LinearAttention, LinearAttention.examples()[example], dtype=F64)
    x = torch.randn(2, length, 24, dtype=F64)
    found, after = at_once(mixer, x)
    torch.testing.assert_close(found, by_sums(mixer, x), rtol=1e-9, atol=1e-9)
    stepped, last = by_steps(mixer, x)
    torch.testing.assert_close(stepped, found, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(last["recurrent"], after["recurrent"], rtol=1e-9, atol=1e-9)


def test_heads_that_share_keys_share_the_state() -> None:
    """Grouped keys work, at once and by steps, and the state is the smaller for them."""
    shared = build(LinearAttention, {"heads": 6, "kv_heads": 2, "feature_dim": 5}, dtype=F64)
    plain = build(LinearAttention, {"heads": 6, "feature_dim": 5}, dtype=F64)
    with torch.no_grad():
        for name in ("key", "value"):
            rows = getattr(shared, name).weight.unflatten(0, (2, -1)).repeat_interleave(3, 0)
            getattr(plain, name).weight.copy_(rows.flatten(0, 1))
        plain.query.weight.copy_(shared.query.weight)
        plain.output.weight.copy_(shared.output.weight)
    x = torch.randn(2, 9, 24, dtype=F64)
    (found, state), (wanted, larger) = at_once(shared, x), at_once(plain, x)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state["recurrent"], larger["recurrent"][:, ::3])
    assert state["recurrent"].shape == (2, 2, 21, 5)


def test_the_state_has_one_size_at_any_length_and_it_is_as_told() -> None:
    mixer = build(LinearAttention, {"heads": 12, "kv_heads": 12, "feature_dim": 16}, 96)
    spec = mixer.state_spec()["recurrent"]
    assert spec.axes == ("B", 12, 1 + 16 + 136, 8 + 1)
    _, after = at_once(mixer, torch.randn(2, 70, 96))
    size = after["recurrent"].numel() * after["recurrent"].element_size()
    for past in (0, 70):
        assert state_bytes(mixer.state_spec(), 2, past, dtype=torch.float32) == size


@pytest.mark.parametrize("example", range(len(LinearAttention.examples())))
def test_pieces_train_like_the_whole(example: int) -> None:
    mixer = build(LinearAttention, LinearAttention.examples()[example], dtype=F64)
    check_pieces_train_alike(mixer, 24)


@pytest.mark.parametrize("name", ["taylor", "elu"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("bf16", 4e-2), ("f16", 5e-3)])
def test_16_bit_models_run_and_train_on_the_cpu(name: str, dtype: str, tolerance: float) -> None:
    options = {"heads": 3, "feature_dim": 6, "feature_map": name}
    check_16_bits("linear_attention", options, dtype, tolerance)


def test_flops_count_projections_and_the_memory() -> None:
    mixer = build(LinearAttention, {"heads": 6, "kv_heads": 2, "feature_dim": 5, "value_dim": 7})
    projections = 24 * (6 * 5 + 2 * 5 + 2 * 7 + 6 * 7)
    wanted = 2 * (projections + (6 + 2) * 21 * 8)
    assert mixer.flops(1, 1) == wanted
    assert mixer.flops(2, 30) == 60 * wanted
    assert mixer.step_flops(2, 1000) == 2 * wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "width is 24, which is no multiple of heads (or give value_dim) = 5"),
        ({"heads": 6, "kv_heads": 4}, "heads = 6 is no multiple of kv_heads = 4"),
        ({"feature_map": "relu"}, "feature_map: "),
        ({"eps": 0}, "eps: "),
        ({"num_heads": 2}, "did you mean"),
    ],
)
def test_options_that_do_not_fit(options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(LinearAttention, options)
    assert message in str(caught.value)
