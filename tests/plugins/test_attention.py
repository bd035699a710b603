"""The attention mixer against attention written out, with and without windows and encodings."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from pydantic import BaseModel
from torch import Tensor

from seqmix.config import Strict, build_config
from seqmix.context import Context
from seqmix.errors import ConfigError
from seqmix.position import PositionEncoding
from seqmix.state import State, initial_state, state_bytes
from seqmix_hybrid.attention import Attention, AttentionConfig

WIDTH = 10
F64 = torch.float64


class Nothing(Strict):
    pass


class Turn(PositionEncoding):
    """Rotates by shifting every key and query by a multiple of its position: easy to write out."""

    Config: ClassVar[type[BaseModel]] = Nothing

    def rotate(self, x: Tensor, positions: Tensor, context_length: Tensor, role: str) -> Tensor:
        return self.rotate_by(x, self.tables(positions, context_length), role)

    def tables(self, positions: Tensor, context_length: Tensor) -> tuple[Tensor, ...]:
        return (positions.clamp(min=0).to(F64) * 0.3,)

    def rotate_by(self, x: Tensor, tables: tuple[Tensor, ...], role: str) -> Tensor:
        sign = 1.0 if role == "query" else -0.5
        return x + sign * tables[0][:, None, :, None]


class Biased(Turn):
    """A bias that falls with the distance, and a scale that depends on the length."""

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        distance = query_positions[:, :, None] - key_positions[:, None, :]
        return -0.1 * distance.to(F64).unsqueeze(1)

    def logit_scale(self, context_length: Tensor) -> Tensor | float:
        return context_length.to(F64).log1p()


class Dynamic(Turn):
    """Keys turn more, the longer the sequence is; so they are kept as they are."""

    caches_rotated_keys = False

    def tables(self, positions: Tensor, context_length: Tensor) -> tuple[Tensor, ...]:
        return (positions.clamp(min=0).to(F64) / context_length[:, None].to(F64),)


class Constant(Turn):
    def logit_scale(self, context_length: Tensor) -> Tensor | float:
        return 2.0


def mixer(**options: Any) -> Attention:
    fields = {"heads": 4, "kv_heads": 2, "head_dim": 3, **options}
    torch.manual_seed(0)
    made = Attention(AttentionConfig.model_validate(fields), WIDTH).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made.requires_grad_(False)


def fresh(made: Attention, batch: int = 1) -> State:
    return initial_state(made.state_spec(), batch, dtype=F64)


def inputs(length: int, batch: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(batch, length, WIDTH, dtype=F64, generator=generator)
    return x, torch.arange(length).expand(batch, length)


def written_out_norm(norm: Any, x: Tensor) -> Tensor:
    result: Tensor = norm.weight * x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return result


def written_out(made: Attention, x: Tensor, encoding: PositionEncoding | None = None) -> Tensor:
    """Head by head and token by token, for one sequence at positions 0..S-1."""
    S, K = x.shape[1], made.head_dim
    positions = torch.arange(S).unsqueeze(0)
    length = torch.tensor([S])
    q = made.query(x).view(1, S, made.heads, K).transpose(1, 2)
    k = made.key(x).view(1, S, made.kv_heads, K).transpose(1, 2)
    v = made.value(x).view(1, S, made.kv_heads, K).transpose(1, 2)
    if made.config.qk_norm:
        q, k = written_out_norm(made.q_norm, q), written_out_norm(made.k_norm, k)
    bias: Tensor | None = None
    factor: Any = 1.0
    if encoding is not None:
        q = encoding.rotate(q, positions, length, "query")
        k = encoding.rotate(k, positions, length, "key")
        bias, factor = encoding.bias(positions, positions), encoding.logit_scale(length)
    scale = (made.config.scale or K**-0.5) * factor
    rows = []
    for t in range(S):
        first = max(0, t + 1 - made.window) if made.window else 0
        heads = []
        for h in range(made.heads):
            g = h // (made.heads // made.kv_heads)
            logits = scale * (k[0, g, first : t + 1] @ q[0, h, t])
            if bias is not None:
                logits = logits + bias[0, 0, t, first : t + 1]
            heads.append(torch.softmax(logits, 0) @ v[0, g, first : t + 1])
        rows.append(made.output(torch.cat(heads)))
    return torch.stack(rows).unsqueeze(0)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"kv_heads": None},
    {"heads": 3, "kv_heads": 1, "head_dim": 5, "scale": 0.7},
    {"bias": True, "output_bias": True},
    {"window": 1},
    {"window": 4, "bias": True},
    {"window": 50},
    {"qk_norm": True, "bias": True},
    {"qk_norm": True, "qk_norm_eps": 0.3, "kv_heads": 1, "window": 3},
]
ENCODINGS: list[PositionEncoding | None] = [None, Turn(), Biased(), Dynamic(), Constant()]


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_against_attention_written_out(
    options: dict[str, Any], encoding: PositionEncoding | None
) -> None:
    made = mixer(**options)
    x, positions = inputs(7)
    y, _ = made(x, fresh(made), Context(positions, encoding=encoding))
    torch.testing.assert_close(y, written_out(made, x, encoding), atol=1e-12, rtol=0)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("split", [1, 3, 6, 8])
def test_splitting(options: dict[str, Any], split: int) -> None:
    made, encoding = mixer(**options), Turn()
    x, positions = inputs(9, batch=2)
    whole, end = made(x, fresh(made, 2), Context(positions, encoding=encoding))
    state, parts = fresh(made, 2), []
    for piece in (slice(0, split), slice(split, 9)):
        y, state = made(x[:, piece], state, Context(positions[:, piece], encoding=encoding))
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-12, rtol=0)
    assert all(torch.equal(state[k], end[k]) or k != "key_positions" for k in end)
    for key in end:
        torch.testing.assert_close(state[key], end[key], atol=1e-12, rtol=0)


def test_dynamic_encodings_turn_old_keys_at_use() -> None:
    made, encoding = mixer(), Dynamic()
    x, positions = inputs(6)
    _, state = made(x[:, :5], fresh(made), Context(positions[:, :5], encoding=encoding))
    last, _ = made(x[:, 5:], state, Context(positions[:, 5:], encoding=encoding))
    torch.testing.assert_close(last, written_out(made, x, encoding)[:, 5:], atol=1e-12, rtol=0)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("mask", ["..xxxxx", "xx.x..xx", "xxxxx...", "x", "...x"])
def test_padding(options: dict[str, Any], mask: str) -> None:
    made, encoding = mixer(**options), Biased()
    real = torch.tensor([c == "x" for c in mask])
    count = int(real.sum())
    x, positions = inputs(count)
    expected, end = made(x, fresh(made), Context(positions, encoding=encoding))
    wide = torch.full((1, len(mask), WIDTH), 9.0, dtype=F64)
    wide[:, real] = x
    at = torch.full((1, len(mask)), -1)
    at[:, real] = positions
    y, state = made(wide, fresh(made), Context(at, encoding=encoding))
    torch.testing.assert_close(y[:, real], expected, atol=1e-12, rtol=0)
    assert not y[:, ~real].any()
    if made.window:
        for key in end:
            torch.testing.assert_close(state[key], end[key], atol=1e-12, rtol=0)
    else:
        kept = state["key_positions"][0] >= 0
        torch.testing.assert_close(state["key"][:, :, kept], end["key"], atol=1e-12, rtol=0)
    more, at_end = inputs(1)
    following = Context(at_end + count, encoding=encoding)
    torch.testing.assert_close(
        made(more, state, following)[0], made(more, end, following)[0], atol=1e-12, rtol=0
    )


def test_padding_alone_changes_nothing_in_a_window() -> None:
    made = mixer(window=4)
    x, positions = inputs(9)
    _, state = made(x, fresh(made), Context(positions))
    y, after = made(x, state, Context(torch.full_like(positions, -1)))
    assert not y.any()
    assert all(torch.equal(after[key], state[key]) for key in state)


def test_padding_that_is_not_a_number_stays_out_of_the_window() -> None:
    made = mixer(window=4)
    x, _ = inputs(3)
    x[:, 1] = float("nan")
    _, state = made(x, fresh(made), Context(torch.tensor([[0, -1, 1]])))
    assert all(bool(t.isfinite().all()) for t in state.values())


def test_state_and_bytes() -> None:
    made = mixer(window=4)
    spec = made.state_spec()
    assert spec["key"].axes == ("B", 2, 3, 3)
    assert spec["key_positions"].fill == -1
    assert state_bytes(spec, 5, 1000, dtype=torch.float32) == 5 * (2 * 2 * 3 * 3 * 4 + 3 * 8)
    assert state_bytes(mixer().state_spec(), 1, 7, dtype=F64) == 7 * (2 * 2 * 3 * 8 + 8)
    assert mixer().state_spec()["value"].grows


def test_gradients_through_the_window() -> None:
    made = mixer(window=3).requires_grad_(True)
    x, positions = inputs(5)
    x.requires_grad_(True)

    def run(x: Tensor) -> Tensor:
        y, state = made(x[:, :3], fresh(made), Context(positions[:, :3]))
        z, after = made(x[:, 3:], state, Context(positions[:, 3:]))
        total: Tensor = torch.cat([y, z], 1).sum() + after["value"].sum()
        return total

    assert torch.autograd.gradcheck(run, (x,))


def test_norms_have_a_weight_per_entry_of_a_head_and_their_own_eps() -> None:
    made = mixer(qk_norm=True, qk_norm_eps=0.3)
    names = {name for name, _ in made.named_parameters()}
    assert {"q_norm.weight", "k_norm.weight"} <= names
    assert made.q_norm is not None
    assert made.q_norm.weight.shape == (3,)
    plain = mixer(qk_norm=True)
    plain.load_state_dict(made.state_dict())
    x, positions = inputs(4)
    other, _ = plain(x, fresh(plain), Context(positions))
    assert not torch.allclose(other, made(x, fresh(made), Context(positions))[0])


def test_without_norms_the_weights_are_the_four_projections() -> None:
    assert {name.split(".")[0] for name in mixer().state_dict()} == {
        "query",
        "key",
        "value",
        "output",
    }


def test_keys_are_kept_normalized_and_rotated() -> None:
    made, encoding = mixer(qk_norm=True), Turn()
    x, positions = inputs(4)
    _, state = made(x, fresh(made), Context(positions, encoding=encoding))
    key = made.key(x).view(1, 4, 2, 3).transpose(1, 2)
    key = encoding.rotate(written_out_norm(made.k_norm, key), positions, positions[:, -1], "key")
    torch.testing.assert_close(state["key"], key, atol=1e-12, rtol=0)


def test_flops() -> None:
    full, near = mixer(), mixer(window=2)
    projections = 10 * (12 + 6 + 6) + 12 * 10
    assert full.flops(2, 5) == 2 * 2 * (5 * projections + 2 * 15 * 12)
    assert near.flops(1, 5) == 2 * (5 * projections + 2 * 9 * 12)
    assert full.flops(1, 1) == near.flops(1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_heads": 3}, "heads = 4 is no multiple of kv_heads = 3"),
        ({"window": 0}, "window: Input should be greater than 0"),
        ({"head": 3}, "unknown key 'head'; did you mean 'heads'"),
        ({"scale": -1.0}, "scale: Input should be greater than 0"),
        ({"qk_norm_eps": 0.0}, "qk_norm_eps: Input should be greater than 0"),
        ({"qk_nrom": True}, "unknown key 'qk_nrom'; did you mean 'qk_norm'"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(AttentionConfig, {"heads": 4, "head_dim": 3, **options}, "attention")
