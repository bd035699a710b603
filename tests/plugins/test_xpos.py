"""xPos: the formula, any length without overflow, decoding with cached keys, the laws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.core import tiny
from tests.mixers import QUICK_BACKENDS
from torch import Tensor

from seqmix.config import build_config
from seqmix.errors import ConfigError
from seqmix.testing import check_position
from seqmix_rope.rope import Rope, RopeConfig
from seqmix_rope.xpos import XPos, XPosConfig

ATTENTION = {"kind": "attention", "heads": 3, "kv_heads": 1, "head_dim": 6}
POSITION = {"kind": "xpos", "theta": 100.0, "scale_base": 8}


def written_out(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    places: np.ndarray,
    config: XPosConfig,
    R: int,
    rows: list[int] | None = None,
) -> np.ndarray:
    """Every pair of the logit by its own rotation and decay; one head ``[N, K]``, or some rows."""
    half, out = R // 2, np.zeros_like(v)
    zeta = (np.arange(half) * 2 / R + config.gamma) / (1 + config.gamma)
    theta = config.theta ** (-2 * np.arange(half) / R)
    pairs = slice(0, half), slice(half, R)
    if config.layout == "interleaved":
        pairs = slice(0, R, 2), slice(1, R, 2)
    for t in rows or range(len(q)):
        logits = []
        for s in range(t + 1):
            turn = zeta ** ((places[t] - places[s]) / config.scale_base) * np.exp(
                1j * (places[t] - places[s]) * theta
            )
            first, second = (x[pairs[0]] + 1j * x[pairs[1]] for x in (q[t], k[s]))
            logits.append((first * turn * second.conj()).real.sum() + q[t, R:] @ k[s, R:])
        logits = np.array(logits) / q.shape[1] ** 0.5
        weights = np.exp(logits - logits.max())
        out[t] = weights / weights.sum() @ v[: t + 1]
    return out


def attended(
    encoding: Rope, q: Tensor, k: Tensor, v: Tensor, places: Tensor, last: int = 0
) -> Tensor:
    """Attention ``[1, 1, N, K]`` of the last queries, keys cached as the mixer does it."""
    length = places.amax(1) + 1
    q, k = (encoding.rotate(x, places, length, role) for x, role in ((q, "query"), (k, "key")))
    return encoding.attend(q[:, :, -last:], k, v, places[:, -last:], places, ())


@pytest.mark.parametrize("start", [0, 10**7])
@pytest.mark.parametrize(
    "options", [{}, {"layout": "interleaved", "rotary_dim": 4}, {"gamma": 0.1}], ids=str
)
def test_against_the_definition_written_out(options: dict[str, object], start: int) -> None:
    config = XPosConfig(theta=100.0, scale_base=5, **options)
    encoding = XPos(config, head_dim=6).double()
    q, k, v = np.random.default_rng(0).normal(size=(3, 30, 6))
    places = np.arange(30) + start
    found = attended(
        encoding, *(torch.from_numpy(x)[None, None] for x in (q, k, v)),
        torch.from_numpy(places).unsqueeze(0),
    )  # fmt: skip
    expected = written_out(q, k, v, places, config, encoding.rotary_dim)
    # Far out, angles of the two halves are rounded before their difference is taken.
    np.testing.assert_allclose(found[0, 0].numpy(), expected, rtol=0, atol=1e-12 + start * 1e-15)


def test_the_decay_is_that_of_the_authors() -> None:
    """``((2i + 0.4 d) / 1.4 d) ^ (n / 512)`` for pair i of d / 2."""
    encoding = XPos(XPosConfig(), head_dim=64)
    theirs = (np.arange(0, 64, 2) + 0.4 * 64) / (1.4 * 64)
    np.testing.assert_allclose(np.exp(-np.array(encoding.decay())), theirs ** (1 / 512), rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gap", [1, 1000, 10**6, 10**9])
def test_no_distance_overflows(dtype: torch.dtype, gap: int) -> None:
    """Neither forwards nor backwards, when keys lie as far behind as they like."""
    encoding = XPos(XPosConfig(scale_base=8), head_dim=8)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 12, 8, generator=generator).to(dtype) for _ in range(3))
    q.requires_grad_(True)
    k.requires_grad_(True)
    places = (torch.arange(12) * gap).unsqueeze(0)
    found = attended(encoding, q, k, v, places)
    assert found.isfinite().all()
    for grad in torch.autograd.grad(found.float().square().sum(), (q, k)):
        assert grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_far_keys_have_decayed_for_a_query_that_is_decoded(dtype: torch.dtype) -> None:
    """What remains of their logits is 0, and the token's own is what it is without decay."""
    encoding = XPos(XPosConfig(), head_dim=8)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 12, 8, generator=generator).to(dtype) for _ in range(3))
    places = torch.cat([torch.arange(11), torch.tensor([10**7])]).unsqueeze(0)
    found = attended(encoding, q, k, v, places, last=1)
    logits = torch.zeros(12)
    logits[11] = (q[0, 0, 11].float() * k[0, 0, 11].float()).sum() / 8**0.5
    expected = torch.softmax(logits, 0) @ v[0, 0].float()
    torch.testing.assert_close(found[0, 0, 0].float(), expected, rtol=0, atol=0.02)


def test_a_prompt_of_many_times_the_scale_is_exact() -> None:
    """One factor for a whole prompt would leave float32 here: blocks have one each."""
    config = XPosConfig(theta=100.0, scale_base=2)
    encoding, length = XPos(config, head_dim=4), 300
    q, k, v = np.random.default_rng(1).normal(size=(3, length, 4)).astype("f4")
    places = np.arange(length)
    given = [torch.from_numpy(x)[None, None] for x in (q, k, v)]
    found = attended(encoding, *given, torch.from_numpy(places).unsqueeze(0))
    rows = [0, 1, 149, 150, 299]
    expected = written_out(*(x.astype("f8") for x in (q, k, v)), places, config, 4, rows)
    np.testing.assert_allclose(found[0, 0].numpy()[rows], expected[rows], rtol=0, atol=2e-5)


@pytest.mark.parametrize("pieces", [[1] * 40, [3, 30, 7], [39, 1]])
def test_any_pieces_are_the_full_forward(pieces: list[int]) -> None:
    made = tiny.model([ATTENTION, ATTENTION], position=POSITION, dtype="f64")
    ids, positions = tiny.tokens(2, 40)
    whole, _ = made(ids, positions)
    states, found, start = None, [], 0
    for size in pieces:
        new = slice(start, start + size)
        logits, states = made(ids[:, new], positions[:, new], states)
        found.append(logits)
        start += size
    torch.testing.assert_close(torch.cat(found, 1), whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("where", ["left", "middle", "right"])
def test_padding_changes_nothing(where: str) -> None:
    made = tiny.model([ATTENTION], position=POSITION, dtype="f64")
    ids, positions = tiny.tokens(1, 40)
    whole, _ = made(ids, positions)
    padded, places = tiny.padded(ids[0], 47, where)
    found, _ = made(padded, places)
    torch.testing.assert_close(found[places >= 0], whole[0], rtol=0, atol=1e-11)


def test_without_decay_it_is_rope() -> None:
    encoding = XPos(XPosConfig(theta=100.0, scale_base=10**12), head_dim=6).double()
    plain = Rope(RopeConfig(theta=100.0), head_dim=6).double()
    q, k = torch.randn(2, 1, 1, 9, 6, dtype=torch.float64)
    places = torch.arange(9).unsqueeze(0)
    v = torch.eye(9, dtype=torch.float64)[None, None]
    weights = attended(encoding, q, k, v, places)[0, 0]
    q, k = (plain.rotate(x, places, places.amax(1), "key") for x in (q, k))
    logits = (q @ k.transpose(-1, -2))[0, 0] / 6**0.5
    later = torch.ones(9, 9, dtype=torch.bool).triu(1)
    expected = torch.softmax(logits.masked_fill(later, -torch.inf), -1)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-9)


def test_laws_and_backends() -> None:
    check_position("xpos", XPos.examples()[0], backends=QUICK_BACKENDS).raise_for_failures()


@pytest.mark.full
def test_laws_and_backends_of_all_examples() -> None:
    check_position("xpos", profile="full").raise_for_failures()


@pytest.mark.parametrize("options", [{"scale_base": 0}, {"gamma": 0}, {"rotary_dim": 5}])
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        build_config(XPosConfig, options, "xpos")
