"""T5's relative bias: buckets as transformers has them, a table that trains, the laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.core import tiny
from tests.mixers import QUICK_BACKENDS

from seqmix.config import build_config
from seqmix.errors import ConfigError
from seqmix.testing import check_position
from seqmix_rope import query_blocks
from seqmix_rope.t5 import T5, T5Config, t5_buckets

ATTENTION = {"kind": "attention", "heads": 3, "kv_heads": 1, "head_dim": 5}
POSITION = {"kind": "t5", "heads": 3, "num_buckets": 8, "max_distance": 20, "init_std": 1.0}


def test_buckets_written_out() -> None:
    assert t5_buckets(8, 32) == [0, 1, 2, 3] + [4] * 3 + [5] * 5 + [6] * 8 + [7] * 13
    for d, bucket in enumerate(t5_buckets(32, 128)):
        if d < 16:
            assert bucket == d
        elif d != 128:
            assert bucket == 16 + math.floor(math.log(d / 16) / math.log(8) * 16)
    assert t5_buckets(32, 128)[-1] == 31


@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (32, 130), (16, 100), (64, 1000)])
def test_buckets_are_those_of_transformers(buckets: int, longest: int) -> None:
    theirs = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention
    distance = torch.arange(longest + 200)
    expected = theirs._relative_position_bucket(
        -distance, bidirectional=False, num_buckets=buckets, max_distance=longest
    )
    found = torch.tensor(t5_buckets(buckets, longest))[distance.clamp(max=longest)]
    assert torch.equal(found, expected)


def test_bias_is_that_of_transformers() -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    from transformers import T5Config as TheirConfig

    theirs = t5.T5Attention(
        TheirConfig(d_model=12, d_kv=4, num_heads=3, is_decoder=True),
        has_relative_attention_bias=True,
    )
    torch.nn.init.normal_(theirs.relative_attention_bias.weight)
    ours = T5(T5Config(heads=3), width=12)
    ours.load_state_dict(theirs.relative_attention_bias.state_dict())
    places = torch.arange(300).unsqueeze(0)
    expected = theirs.compute_bias(300, 300)
    seen = places.unsqueeze(-1) >= places.unsqueeze(1)
    found = ours.bias(places, places)
    assert torch.equal(found.masked_fill(~seen, 0), expected.masked_fill(~seen, 0))


def test_attention_against_the_definition_written_out() -> None:
    encoding = T5(T5Config(heads=4, num_buckets=4, max_distance=6), width=1).double()
    rng = np.random.default_rng(0)
    table = rng.normal(size=(4, 4))
    encoding.weight.data = torch.from_numpy(table)
    q, k, v = (rng.normal(size=(heads, 9, 5)) for heads in (4, 2, 2))
    buckets, expected = [0, 1, 2, 2, 3, 3, 3, 3, 3], np.zeros((4, 9, 5))
    for h in range(4):
        for t in range(9):
            logits = k[h // 2, : t + 1] @ q[h, t] / 5**0.5
            logits += [table[buckets[t - s], h] for s in range(t + 1)]
            weights = np.exp(logits - logits.max())
            expected[h, t] = weights / weights.sum() @ v[h // 2, : t + 1]
    places = torch.arange(9).unsqueeze(0)
    given = (torch.from_numpy(x).unsqueeze(0) for x in (q, k, v))
    found = encoding.attend(*given, places, places, ())
    np.testing.assert_allclose(found[0].detach().numpy(), expected, rtol=0, atol=1e-13)


def test_laws_and_backends() -> None:
    check_position("t5", T5.examples()[0], backends=QUICK_BACKENDS).raise_for_failures()


@pytest.mark.full
def test_laws_and_backends_of_all_examples() -> None:
    check_position("t5", profile="full").raise_for_failures()


def test_one_table_for_all_layers_that_trains() -> None:
    made = tiny.model([ATTENTION, ATTENTION], position=POSITION).requires_grad_(True)
    names = [name for name, _ in made.named_parameters() if "position" in name]
    assert names == ["position.weight"]
    ids, positions = tiny.tokens(2, 30)
    optimizer = torch.optim.Adam([made.position.weight], lr=0.1)
    losses = []
    for _ in range(20):
        logits, _ = made(ids, positions)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05
    assert (made.position.weight.grad != 0).all()


def test_gradients_of_blocks_are_those_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny.model([ATTENTION], position=POSITION, dtype="f64").requires_grad_(True)
    ids, positions = tiny.tokens(2, 40)
    found = []
    for budget in (1 << 24, 2 * 3 * 40 * 7):
        monkeypatch.setattr(query_blocks, "_LOGITS", budget)
        logits, _ = made(ids, positions)
        found.append(torch.autograd.grad(logits.square().sum(), list(made.parameters())))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("where", ["left", "middle", "right"])
def test_padding_changes_nothing(where: str) -> None:
    made = tiny.model([ATTENTION], position=POSITION, dtype="f64")
    ids, positions = tiny.tokens(1, 12)
    whole, _ = made(ids, positions)
    padded, places = tiny.padded(ids[0], 17, where)
    found, _ = made(padded, places)
    torch.testing.assert_close(found[places >= 0], whole[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_half_precision_models_are_near(dtype: str) -> None:
    wide = tiny.model([ATTENTION], position=POSITION)
    narrow = tiny.model([ATTENTION], position=POSITION, dtype=dtype)
    narrow.load_state_dict(wide.state_dict())
    ids, positions = tiny.tokens(1, 60)
    exact = wide(ids, positions)[0]
    error = (narrow(ids, positions)[0].float() - exact).abs().max()
    assert error < 0.05 * exact.abs().max()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'heads' is missing"),
        ({"heads": 2, "num_buckets": 1}, "greater than or equal to 2"),
        ({"heads": 2, "num_buckets": 32, "max_distance": 16}, "should be above num_buckets / 2"),
        ({"heads": 2, "buckets": 4}, "did you mean 'num_buckets'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(T5Config, options, "t5")
