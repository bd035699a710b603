"""ALiBi: slopes as the authors and transformers have them, biases, head counts, long prompts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.core import tiny
from tests.mixers import QUICK_BACKENDS

from seqmix.config import ModelConfig
from seqmix.errors import ConfigError
from seqmix.model import Model
from seqmix.testing import check_position
from seqmix_rope import query_blocks
from seqmix_rope.alibi import Alibi, AlibiConfig, alibi_slopes

ATTENTION = {"kind": "attention", "heads": 3, "kv_heads": 1, "head_dim": 5}


def model(steps: list[object] | None = None, heads: int = 3) -> Model:
    position = {"kind": "alibi", "heads": heads}
    return tiny.model([ATTENTION] if steps is None else steps, position=position, dtype="f64")


def test_slopes_of_a_power_of_two_are_geometric() -> None:
    assert alibi_slopes(8) == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(1) == [2.0**-8]
    assert alibi_slopes(2, max_exponent=4.0) == [0.25, 0.0625]


def test_slopes_of_other_counts_are_filled_up_from_twice_as_many() -> None:
    assert alibi_slopes(3) == [2.0**-4, 2.0**-8, 2.0**-2]
    assert alibi_slopes(12) == alibi_slopes(8) + [2.0 ** -(i + 0.5) for i in range(4)]


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 17, 40, 71, 112])
def test_slopes_are_those_of_transformers(heads: int) -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    ours = np.array(alibi_slopes(heads))
    mask = torch.ones(1, 5)
    theirs = bloom.build_alibi_tensor(mask, heads, torch.float32)[:, 0, 1]
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)
    # Its bias is that of the last query: slope times minus the distance.
    last = mpt.build_mpt_alibi_tensor(heads, 5, alibi_bias_max=8)[:, 0]
    np.testing.assert_allclose(-ours[:, None] * np.arange(4, -1, -1), last.numpy(), rtol=1e-6)
    steep = mpt.build_mpt_alibi_tensor(heads, 2, alibi_bias_max=4)[:, 0, 0]
    np.testing.assert_allclose(-np.array(alibi_slopes(heads, 4.0)), steep.numpy(), rtol=1e-6)


def test_attention_against_the_definition_written_out() -> None:
    encoding = Alibi(AlibiConfig(heads=6), width=1).double()
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(heads, 9, 5)) for heads in (6, 2, 2))
    expected = np.zeros((6, 9, 5))
    for h, slope in enumerate((1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8)):
        for t in range(9):
            logits = k[h // 3, : t + 1] @ q[h, t] / 5**0.5 - slope * np.arange(t, -1, -1)
            weights = np.exp(logits - logits.max())
            expected[h, t] = weights / weights.sum() @ v[h // 3, : t + 1]
    places = torch.arange(9).unsqueeze(0)
    given = (torch.from_numpy(x).unsqueeze(0) for x in (q, k, v))
    found = encoding.attend(*given, places, places, ())
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=0, atol=1e-13)


def test_laws_and_backends() -> None:
    check_position("alibi", Alibi.examples()[0], backends=QUICK_BACKENDS).raise_for_failures()


@pytest.mark.full
def test_laws_and_backends_of_all_examples() -> None:
    check_position("alibi", profile="full").raise_for_failures()


def test_a_long_prompt_is_attended_to_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model()
    ids, positions = tiny.tokens(2, 40)
    whole, _ = made(ids, positions)
    monkeypatch.setattr(query_blocks, "_LOGITS", 2 * 3 * 40 * 7)
    torch.testing.assert_close(made(ids, positions)[0], whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("where", ["left", "middle", "right"])
def test_padding_changes_nothing(where: str) -> None:
    made = model()
    ids, positions = tiny.tokens(1, 12)
    whole, _ = made(ids, positions)
    padded, places = tiny.padded(ids[0], 17, where)
    found, _ = made(padded, places)
    torch.testing.assert_close(found[places >= 0], whole[0], rtol=0, atol=1e-12)


def test_far_positions_are_as_exact_as_near_ones() -> None:
    """A bias depends on the distance alone, and is made of whole numbers."""
    encoding = Alibi(AlibiConfig(heads=4), width=1)
    near = encoding.bias(torch.tensor([[9]]), torch.arange(10).unsqueeze(0))
    far = encoding.bias(torch.tensor([[2**40 + 9]]), 2**40 + torch.arange(10).unsqueeze(0))
    assert torch.equal(near, far)
    assert near.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_half_precision_models_are_near(dtype: str) -> None:
    wide = model()
    narrow = tiny.model([ATTENTION], position={"kind": "alibi", "heads": 3}, dtype=dtype)
    narrow.load_state_dict(wide.state_dict())
    ids, positions = tiny.tokens(1, 60)
    exact = wide(ids, positions)[0]
    error = (narrow(ids, positions)[0].double() - exact).abs().max()
    assert error < 0.05 * exact.abs().max()


def test_layers_have_as_many_heads_as_there_are_slopes() -> None:
    made = model(heads=4)
    with pytest.raises(ConfigError, match=r"heads = 4, but an attention layer has 3"):
        made(*tiny.tokens(1, 3))


def test_a_model_needs_no_head_size_for_it() -> None:
    config = ModelConfig.model_validate({
        "vocab_size": 9, "width": 10, "context_length": 8, "blocks": [{"steps": [ATTENTION]}],
        "position": {"kind": "alibi", "heads": 3},
    })  # fmt: skip
    logits, _ = Model(config)(torch.tensor([[1, 2]]), torch.tensor([[0, 1]]))
    assert logits.shape == (1, 2, 9)
