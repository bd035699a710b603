"""Dynamic scaling: decoding is the full forward at every length, and nothing is remembered."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.core import tiny
from torch import Tensor

from seqmix import registry
from seqmix.config import build_config
from seqmix.context import Context
from seqmix.errors import ConfigError
from seqmix.model import Model
from seqmix.state import initial_state
from seqmix_hybrid.attention import Attention, AttentionConfig
from seqmix_rope.rope import Rope
from seqmix_rope.scaling import rope_frequencies

L = 16
KINDS = ("dynamic-linear", "dynamic-ntk", "dynamic-ntk-by-parts", "dynamic-yarn")
YARN: dict[str, Any] = {
    "kind": "dynamic-yarn", "beta_fast": 1.5, "beta_slow": 0.1, "mscale": 0.7,
    "mscale_all_dim": 1.9, "scale_softmax": True,
}  # fmt: skip


def options(kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "theta": 100.0, "original_context_length": L, **more}


def model(layers: int, position: dict[str, Any], dtype: str = "f64") -> Model:
    """Attention over everything, and one with a window, in turn."""
    steps = [[tiny.ATTENTION], [{**tiny.ATTENTION, "window": 9}]]
    blocks = [{"steps": [step for i in range(layers) for step in steps[i % 2]]}]
    return tiny.model(position=position, blocks=blocks, dtype=dtype)


def decoded(made: Model, ids: Tensor, pieces: list[int]) -> Tensor:
    """Logits of ids ``[B, S]``, read in pieces of the given sizes."""
    states, out, start = None, [], 0
    for size in pieces:
        positions = torch.arange(start, start + size).expand(ids.shape[0], -1)
        logits, states = made(ids[:, start : start + size], positions, states)
        out.append(logits)
        start += size
    return torch.cat(out, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("layers", "dtype"),
    [
        (2, "f64"),
        *(
            pytest.param(layers, dtype, marks=pytest.mark.full)
            for layers, dtype in ((1, "f64"), (4, "f64"), (1, "f32"), (2, "f32"), (4, "f32"))
        ),
    ],
)
def test_decoding_is_the_full_forward(kind: str, layers: int, dtype: str) -> None:
    made = model(layers, options(kind), dtype)
    ids, positions = tiny.tokens(1, L + 40)
    every = decoded(made, ids, [1] * (L + 40))
    for length in (L - 3, L - 1, L, L + 1, L + 7, 2 * L, L + 40):
        whole, _ = made(ids[:, :length], positions[:, :length])
        steps = every[:, :length]
        error = (steps - whole).abs().max().item() / whole.abs().max().item()
        assert error < (1e-10 if dtype == "f64" else 1e-5)


@pytest.mark.parametrize(
    "position",
    [
        options("dynamic-ntk", granularity=5),
        {**YARN, **options("dynamic-yarn", layout="interleaved", rotary_dim=4)},
        options("dynamic-linear", rate=2.5),
        {
            "kind": "longrope", "theta": 100.0, "original_context_length": L, "factor": 4.0,
            "short_factor": [1.0, 1.1, 1.2], "long_factor": [2.0, 4.0, 8.0],
        },
    ],
    ids=lambda p: p["kind"],
)  # fmt: skip
@pytest.mark.parametrize("pieces", [[L, 24], [L - 3, 7, 20], [39, 1], [1, 38, 1]])
def test_any_pieces_are_the_full_forward(position: dict[str, Any], pieces: list[int]) -> None:
    made = model(2, position)
    ids, positions = tiny.tokens(2, 40)
    whole, _ = made(ids, positions)
    torch.testing.assert_close(decoded(made, ids, pieces), whole, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_batch_do_not_see_each_others_length(kind: str) -> None:
    made = model(2, options(kind))
    lengths = [L - 3, L + 1, 2 * L, L + 40]
    longest = max(lengths)
    ids, _ = tiny.tokens(len(lengths), longest)
    count = torch.arange(longest)
    for left in (False, True):
        rows = [
            torch.cat([ids[i, :n], torch.zeros(longest - n, dtype=torch.long)])
            for i, n in enumerate(lengths)
        ]
        places = [torch.where(count < n, count, -1) for n in lengths]
        if left:
            rows = [row.roll(longest - n) for row, n in zip(rows, lengths, strict=True)]
            places = [p.roll(longest - n) for p, n in zip(places, lengths, strict=True)]
        batch, states = made(torch.stack(rows), torch.stack(places))
        step, _ = made(ids[:, :1], torch.tensor([[n] for n in lengths]), states)
        for i, n in enumerate(lengths):
            alone, state = made(ids[i : i + 1, :n], torch.arange(n).unsqueeze(0))
            real = places[i] >= 0
            torch.testing.assert_close(batch[i][real], alone[0], rtol=0, atol=1e-11)
            after, _ = made(ids[i : i + 1, :1], torch.tensor([[n]]), state)
            torch.testing.assert_close(step[i], after[0], rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["per_query", "per_window"])
def test_a_long_prompt_leaves_no_trace(kind: str, mode: str) -> None:
    made = model(2, options(kind, mode=mode))
    ids, positions = tiny.tokens(1, 4 * L)
    short = (ids[:, : L + 5], positions[:, : L + 5])
    before, _ = made(*short)
    made(ids, positions)
    assert torch.equal(made(*short)[0], before)


@pytest.mark.parametrize("kind", KINDS)
def test_up_to_the_original_length_nothing_is_scaled(kind: str) -> None:
    ids, positions = tiny.tokens(2, L)
    dynamic = model(2, options(kind))
    plain = model(2, {"kind": "rope", "theta": 100.0})
    torch.testing.assert_close(
        dynamic(ids, positions)[0], plain(ids, positions)[0], rtol=0, atol=1e-12
    )
    more, later = tiny.tokens(2, L + 1)
    gap = dynamic(more, later)[0][:, -1] - plain(more, later)[0][:, -1]
    assert gap.abs().max().item() > 1e-4


def encoding(position: dict[str, Any], head_dim: int) -> Rope:
    rest = {key: value for key, value in position.items() if key != "kind"}
    cls = registry.get("positions", position["kind"])
    made = cls(build_config(cls.Config, rest, "position"), head_dim=head_dim)
    assert isinstance(made, Rope)
    return made.double()


def written_out(mixer: Attention, x: Tensor, made: Rope) -> Tensor:
    """Query by query: all keys and the query turned by the frequencies of its own length."""
    S, K = x.shape[1], mixer.head_dim
    q, k, v = (
        part(x).view(S, -1, K).transpose(0, 1) for part in (mixer.query, mixer.key, mixer.value)
    )
    rows = []
    for t in range(S):
        found = made.frequencies(t + 1)
        angles = torch.arange(t + 1)[:, None] * torch.from_numpy(found.inv_freq)
        turns = torch.polar(torch.full_like(angles, found.attention_factor), angles)
        half, heads = angles.shape[1], []
        for h in range(mixer.heads):
            keys = k[h // (mixer.heads // mixer.kv_heads), : t + 1]
            query = torch.complex(q[h, t, :half], q[h, t, half : 2 * half]) * turns[t]
            turned = torch.complex(keys[:, :half], keys[:, half : 2 * half]) * turns
            logits = (query.conj() * turned).real.sum(-1) + keys[:, 2 * half :] @ q[
                h, t, 2 * half :
            ]
            logits = logits * found.logit_factor * K**-0.5
            heads.append(
                torch.softmax(logits, 0) @ v[h // (mixer.heads // mixer.kv_heads), : t + 1]
            )
        rows.append(mixer.output(torch.cat(heads)))
    return torch.stack(rows).unsqueeze(0)


@pytest.mark.parametrize(
    "position",
    [
        options("dynamic-linear"),
        options("dynamic-ntk", rotary_dim=4),
        options("dynamic-ntk-by-parts", beta_fast=1.5, beta_slow=0.1),
        {**YARN, **options("dynamic-yarn")},
        options("dynamic-yarn", attn_factor=0.8, rotary_dim=4),
    ],
    ids=lambda p: p["kind"],
)
def test_against_the_definition_written_out(position: dict[str, Any]) -> None:
    torch.manual_seed(3)
    mixer = Attention(AttentionConfig(heads=4, kv_heads=2, head_dim=6), 10).double()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    made = encoding(position, 6)
    x = torch.randn(1, L + 9, 10, dtype=torch.float64)
    positions = torch.arange(L + 9).unsqueeze(0)
    state = initial_state(mixer.state_spec(), 1, dtype=torch.float64)
    with torch.no_grad():
        y, after = mixer(x, state, Context(positions, encoding=made))
        torch.testing.assert_close(y, written_out(mixer, x, made), rtol=0, atol=1e-12)
        keys = mixer.key(x).view(1, L + 9, 2, 6).transpose(1, 2)
    assert torch.equal(after["key"], keys)


def test_one_scale_per_window_is_the_static_one_of_its_length() -> None:
    """And a sequence in pieces is then not the same as at once, as the paper's evaluation is."""
    ids, positions = tiny.tokens(1, 40)
    window = model(2, options("dynamic-ntk", mode="per_window"))
    static = model(2, {"kind": "ntk", "theta": 100.0, "factor": 40 / L})
    whole, _ = window(ids, positions)
    torch.testing.assert_close(whole, static(ids, positions)[0], rtol=0, atol=1e-12)
    assert not window.position.splits
    assert (decoded(window, ids, [30, 10]) - whole).abs().max().item() > 1e-4


def test_granularity_takes_the_length_at_the_end_of_the_block() -> None:
    made = encoding(options("dynamic-linear", granularity=8), 4)
    positions = torch.tensor([[0, 14, 15, 16, 23, 24, -1]])
    inv_freq, _, _ = made.tables(positions, positions.amax(1) + 1)
    plain = rope_frequencies(4, 100.0).inv_freq
    for found, s in zip(inv_freq[0], (1, 1, 1, 1.5, 1.5, 2, 1), strict=True):
        torch.testing.assert_close(found, torch.from_numpy(plain / s), rtol=1e-14, atol=0)


def test_keys_cannot_be_rotated_by_a_table_per_query() -> None:
    made = encoding(options("dynamic-ntk"), 4)
    x, positions = torch.zeros(1, 1, 2, 4), torch.tensor([[0, 1]])
    with pytest.raises(ConfigError, match=r"Context\.attend .* mode = 'per_window'"):
        made.rotate(x, positions, torch.tensor([2]), "key")


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_half_precision_models_are_near(dtype: str) -> None:
    ids, positions = tiny.tokens(1, L + 9)
    wide = model(2, options("dynamic-yarn"), "f32")
    narrow = model(2, options("dynamic-yarn"), dtype)
    narrow.load_state_dict(wide.state_dict())
    exact = wide(ids, positions)[0]
    error = (narrow(ids, positions)[0].float() - exact).abs().max().item()
    assert error < 0.1 * exact.abs().max().item()


def test_mixers_that_ask_for_some_queries_only() -> None:
    """A selecting mixer meets the frequencies of each query that it selects."""
    from seqmix_hybrid.selective_attention import SelectiveAttention, SelectiveAttentionConfig

    sizes: dict[str, Any] = {"heads": 2, "head_dim": 6}
    every = Attention(AttentionConfig(**sizes), 10).double()
    some = SelectiveAttention(
        SelectiveAttentionConfig(**sizes, selection="random", probability=0.5), 10
    ).double()
    some.load_state_dict(every.state_dict(), strict=False)
    made, x = encoding(options("dynamic-ntk"), 6), torch.randn(1, L + 9, 10, dtype=torch.float64)
    found = []
    for mixer in (every, some):
        state = initial_state(mixer.state_spec(), 1, dtype=torch.float64)
        positions = torch.arange(L + 9).unsqueeze(0)
        found.append(mixer(x, state, Context(positions, encoding=made))[0].detach())
    chosen = found[1].abs().sum(-1) > 0
    assert 0 < int(chosen.sum()) < L + 9
    assert chosen[:, L:].any()
    torch.testing.assert_close(found[1][chosen], found[0][chosen], rtol=0, atol=1e-12)
