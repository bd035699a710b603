"""Retention against the three forms of the paper, written out in numpy."""

from __future__ import annotations

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
)

from seqmix.context import Context
from seqmix.errors import ConfigError
from seqmix.state import state_bytes
from seqmix.testing import check_mixer
from seqmix_gated_conv.retention import Retention

F64 = torch.float64
Array = np.ndarray


@pytest.mark.full
def test_laws_at_full_length_and_in_16_bits() -> None:
    check_mixer(Retention, profile="full").raise_for_failures()


class Paper:
    """The paper's equations for one row ``x [S, D]``, with complex rotations."""

    def __init__(self, mixer: Retention) -> None:
        self.w = {n: p.detach().double().numpy() for n, p in mixer.named_parameters()}
        self.heads = mixer.heads
        self.eps = mixer.norm.eps
        self.gamma = 1 - 2.0 ** (-5 - np.arange(self.heads))

    def split(self, x: Array, name: str) -> Array:
        """``[H, S, size]``."""
        found = x @ self.w[f"{name}.weight"].T
        return found.reshape(len(x), self.heads, -1).transpose(1, 0, 2)

    def rotated(self, x: Array, name: str, places: Array) -> Array:
        """Pairs as complex numbers ``[H, S, K/2]``, turned by their position."""
        parts = self.split(x, name)
        pairs = parts[..., 0::2] + 1j * parts[..., 1::2]
        theta = 10000.0 ** -np.linspace(0, 1, pairs.shape[-1])
        return pairs * np.exp(1j * places[:, None] * theta)

    def operands(self, x: Array, places: Array) -> tuple[Array, Array, Array]:
        q, k = self.rotated(x, "query", places), self.rotated(x, "key", places)
        size = 2 * q.shape[-1]
        return q, k.conj() / np.sqrt(size), self.split(x, "value")

    def parallel(self, x: Array, places: Array) -> Array:
        """``(Q K^T * D) V`` with ``D_nm = gamma^(n - m)``."""
        q, k, v = self.operands(x, places)
        age = np.arange(len(x))[:, None] - np.arange(len(x))
        decay = np.where(age >= 0, self.gamma[:, None, None] ** np.maximum(age, 0), 0)
        return self.gated(x, ((q @ k.swapaxes(1, 2)).real * decay) @ v)

    def recurrent(self, x: Array, places: Array) -> Array:
        """``S_n = gamma S_{n-1} + K_n^T V_n``, ``o_n = Q_n S_n``."""
        q, k, v = self.operands(x, places)
        state = np.zeros((self.heads, k.shape[2], v.shape[2]), complex)
        out = []
        for n in range(len(x)):
            state = self.gamma[:, None, None] * state + k[:, n, :, None] * v[:, n, None, :]
            out.append((q[:, n, None, :] @ state)[:, 0].real)
        return self.gated(x, np.stack(out, 1))

    def chunkwise(self, x: Array, places: Array, size: int) -> Array:
        """Chunks in parallel form, and a state that is handed from one to the next."""
        q, k, v = self.operands(x, places)
        gamma = self.gamma[:, None, None]
        state = np.zeros((self.heads, k.shape[2], v.shape[2]), complex)
        out = []
        for start in range(0, len(x), size):
            part = slice(start, start + size)
            qc, kc, vc = q[:, part], k[:, part], v[:, part]
            n = np.arange(qc.shape[1])
            age = n[:, None] - n
            decay = np.where(age >= 0, gamma ** np.maximum(age, 0), 0)
            inner = (qc @ kc.swapaxes(1, 2) * decay) @ vc
            cross = qc @ state * gamma ** (n[:, None] + 1)
            out.append((inner + cross).real)
            to_end = gamma ** (len(n) - 1 - n)[:, None]
            state = (kc * to_end).swapaxes(1, 2) @ vc + gamma ** len(n) * state
        return self.gated(x, np.concatenate(out, 1))

    def gated(self, x: Array, heads: Array) -> Array:
        """The norm of each head, the swish gate, the output projection."""
        centred = heads - heads.mean(-1, keepdims=True)
        normed = centred / np.sqrt(heads.var(-1, keepdims=True) + self.eps)
        y = normed.transpose(1, 0, 2).reshape(len(x), -1) * self.w["norm.weight"]
        gate = x @ self.w["gate.weight"].T
        return (gate / (1 + np.exp(-gate)) * y) @ self.w["output.weight"].T


@pytest.mark.parametrize("example", range(len(Retention.examples())))
@pytest.mark.parametrize("length", [1, 2, 65])
def test_it_is_each_of_the_forms_of_the_paper(example: int, length: int) -> None:
    mixer = build(Retention, Retention.examples()[example], dtype=F64)
    x = torch.randn(1, length, 24, dtype=F64)
    paper, places = Paper(mixer), np.arange(length)
    for found in (at_once(mixer, x)[0], by_steps(mixer, x)[0]):
        for wanted in (
            paper.parallel(x[0].numpy(), places),
            paper.recurrent(x[0].numpy(), places),
            paper.chunkwise(x[0].numpy(), places, 7),
        ):
            torch.testing.assert_close(found[0], torch.from_numpy(wanted), rtol=1e-8, atol=1e-8)


def test_float32_stays_near_far_from_the_start() -> None:
    """Angles are products in float64: at position 100000 float32 ones would be off by 0.004."""
    mixer = build(Retention, {"heads": 3})
    x, places = torch.randn(1, 9, 24), torch.arange(100_000, 100_009).unsqueeze(0)
    found, _ = mixer(x, fresh(mixer, 1), Context(places))
    wanted = Paper(mixer).parallel(x[0].double().numpy(), places[0].numpy())
    torch.testing.assert_close(found[0].double(), torch.from_numpy(wanted), rtol=1e-4, atol=1e-4)


def test_the_paper_may_scale_its_scores_because_the_norm_undoes_it() -> None:
    """Its two normalizations of scores change nothing but what eps weighs."""
    mixer = build(Retention, {"heads": 2, "norm_eps": 1e-12}, dtype=F64)
    x, places = np.random.default_rng(0).standard_normal((20, 24)), np.arange(20)
    paper = Paper(mixer)
    q, k, v = paper.operands(x, places)
    age = places[:, None] - places
    decay = np.where(age >= 0, paper.gamma[:, None, None] ** np.maximum(age, 0), 0)
    scores = (q @ k.swapaxes(1, 2)).real * decay / np.sqrt(decay.sum(-1, keepdims=True))
    scores = scores / np.maximum(np.abs(scores.sum(-1, keepdims=True)), 1)
    wanted = torch.from_numpy(paper.gated(x, scores @ v))
    found, _ = at_once(mixer, torch.from_numpy(x).unsqueeze(0))
    torch.testing.assert_close(found[0], wanted, rtol=1e-6, atol=1e-6)


def test_decay_counts_tokens_and_rotation_counts_positions() -> None:
    """A gap in the positions turns keys further, but is not forgotten over."""
    mixer = build(Retention, {"heads": 3}, dtype=F64)
    x, places = torch.randn(1, 6, 24, dtype=F64), np.array([0, 1, 2, 9, 10, 30])
    found, _ = mixer(x, fresh(mixer, 1), Context(torch.from_numpy(places).unsqueeze(0)))
    wanted = Paper(mixer).parallel(x[0].numpy(), places)
    torch.testing.assert_close(found[0], torch.from_numpy(wanted), rtol=1e-8, atol=1e-8)


def test_only_distances_matter() -> None:
    mixer = build(Retention, {"heads": 2}, dtype=F64)
    x = torch.randn(1, 12, 24, dtype=F64)
    near, _ = mixer(x, fresh(mixer, 1), Context(torch.arange(12).unsqueeze(0)))
    far, _ = mixer(x, fresh(mixer, 1), Context(torch.arange(5000, 5012).unsqueeze(0)))
    torch.testing.assert_close(near, far, rtol=1e-7, atol=1e-7)


def test_padding_does_not_forget() -> None:
    mixer = build(Retention, {"heads": 3}, dtype=F64)
    x = torch.randn(1, 8, 24, dtype=F64)
    plain, state = at_once(mixer, x[:, [0, 1, 5, 6]])
    places = torch.tensor([[0, 1, -1, -1, -1, 2, 3, -1]])
    padded, after = mixer(x, fresh(mixer, 1), Context(places))
    torch.testing.assert_close(padded[:, [0, 1, 5, 6]], plain)
    torch.testing.assert_close(after["recurrent"], state["recurrent"])
    assert (padded[places < 0] == 0).all()


def test_the_state_has_one_size_and_is_float32() -> None:
    mixer = build(Retention, {"heads": 2, "key_dim": 10, "value_factor": 0.75})
    assert mixer.state_spec()["recurrent"].axes == ("B", 2, 10, 9)
    _, after = at_once(mixer, torch.randn(3, 40, 24))
    assert after["recurrent"].dtype == torch.float32
    size = after["recurrent"].numel() * 4
    assert state_bytes(mixer.state_spec(), 3, 40, dtype=torch.bfloat16) == size


@pytest.mark.parametrize("example", range(len(Retention.examples())))
def test_pieces_train_like_the_whole(example: int) -> None:
    check_pieces_train_alike(build(Retention, Retention.examples()[example], dtype=F64), 24)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bf16", 6e-2), ("f16", 5e-3)])
def test_16_bit_models_run_and_train_on_the_cpu(dtype: str, tolerance: float) -> None:
    check_16_bits("retention", {"heads": 3}, dtype, tolerance)


def test_flops_count_projections_and_the_memory() -> None:
    wanted = 2 * (2 * 24 * 24 + 3 * 24 * 48 + 2 * 3 * 8 * 16)
    mixer = build(Retention, {"heads": 3})
    assert mixer.flops(1, 1) == wanted
    assert mixer.flops(2, 30) == 60 * wanted
    assert mixer.step_flops(1, 500) == wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'heads' is missing"),
        ({"heads": 5}, "width is 24, which is no multiple of"),
        ({"heads": 8}, "width / heads is 3, which is odd"),
        ({"heads": 2, "key_dim": 5}, "key_dim: "),
        (
            {"heads": 8, "key_dim": 4, "value_factor": 0.5},
            "value_factor * width is 12, which is no",
        ),
        ({"heads": 2, "key_size": 4}, "did you mean 'key_dim'"),
    ],
)
def test_options_that_do_not_fit(options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Retention, options)
    assert message in str(caught.value)
