"""ReRoPE against its definition, RoPE within the window, extending by it, long prompts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.core import tiny
from tests.mixers import QUICK_BACKENDS
from tests.plugins.clipped_cases import decoded, run, stirred, written_out

import seqmix
from seqmix.config import build_config
from seqmix.errors import ConfigError
from seqmix.extend import extend
from seqmix.model import Model
from seqmix.testing import check_mixer
from seqmix_rope.rerope import ReRoPE, ReRoPEConfig

SIZES: dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_dim": 6, "theta": 100.0}
STEPS = [tiny.ATTENTION, [tiny.ATTENTION, tiny.SWIGLU], tiny.MLP]


@pytest.mark.parametrize(
    "options",
    [
        {"window": 5},
        {"window": 1},
        {"window": 4, "leak": 3.0, "bias": True, "output_bias": True},
        {"window": 4, "leak": 2.0, "rotary_dim": 4, "layout": "interleaved", "scale": 0.9},
        {"window": 3, "trained_length": 7},
    ],
    ids=str,
)
def test_against_the_definition_written_out(options: dict[str, Any]) -> None:
    config = ReRoPEConfig(**SIZES, **options)
    mixer = stirred(ReRoPE(config, 10))
    x = np.random.default_rng(0).normal(size=(19, 10))
    w, k, length = config.window, config.leak, config.trained_length

    def apparent(d: int) -> float:
        return d if d < w else w + ((d - w) / k if k else 0.0)

    def growth(t: int) -> float:
        return max(1.0, math.log(t + 1) / math.log(length)) if length else 1.0

    expected = written_out(mixer, config, x, lambda t, s: True, apparent, growth)
    np.testing.assert_allclose(run(mixer, x), expected, rtol=0, atol=1e-12)


def test_laws_and_backends() -> None:
    check_mixer("rerope", ReRoPE.examples()[1], backends=QUICK_BACKENDS).raise_for_failures()


@pytest.mark.full
def test_laws_and_backends_of_all_examples() -> None:
    check_mixer("rerope", profile="full").raise_for_failures()


def test_within_the_window_it_is_rope() -> None:
    plain = tiny.model(STEPS, dtype="f64")
    ids, positions = tiny.tokens(2, 40)
    for spec, same in (("rerope:40", 40), ("rerope:16", 16), ("rerope:16:3", 16)):
        made = extend(plain, spec)
        apart = (made(ids, positions)[0] - plain(ids, positions)[0]).abs().amax((0, 2))
        assert apart[: same + 1].max() < 1e-12
        if same < 40:
            assert apart[same + 1 :].max() > 1e-4


def test_a_leak_of_one_step_is_between() -> None:
    """The more it leaks the nearer to RoPE, and k = 1 would be RoPE."""
    plain = tiny.model(STEPS, dtype="f64")
    ids, positions = tiny.tokens(1, 40)
    whole, _ = plain(ids, positions)
    found = [extend(plain, f"rerope:8{k}")(ids, positions)[0] for k in ("", ":64", ":2")]
    gaps = [(logits - whole).norm().item() for logits in found]
    assert gaps[0] > gaps[1] > gaps[2] > 1e-4


@pytest.mark.parametrize("pieces", [[1] * 40, [7, 1, 32], [39, 1]])
@pytest.mark.parametrize("spec", ["rerope:6", "rerope:6:4"])
def test_any_pieces_are_the_full_forward(spec: str, pieces: list[int]) -> None:
    made = extend(tiny.model(STEPS, dtype="f64"), spec)
    ids, positions = tiny.tokens(2, 40)
    whole, _ = made(ids, positions)
    torch.testing.assert_close(decoded(made, ids, pieces), whole, rtol=0, atol=1e-10)


def test_an_extended_model_shares_every_weight() -> None:
    plain = tiny.model(STEPS, dtype="f64")
    made = extend(plain, "rerope")
    kinds = [branch.kind for branch in made.config.branches()]
    assert "attention" not in kinds
    assert kinds.count("rerope") == 4
    assert made.config.position is None
    assert made.config.context_length == 128
    assert made.config.branches()[0].options["window"] == 32
    ours = dict(made.named_parameters())
    assert all(parameter is ours[name] for name, parameter in plain.named_parameters())
    assert {b.kind for b in plain.config.branches()} == {"attention", "swiglu", "mlp"}
    rebuilt = Model(made.config).eval().double()
    rebuilt.load_state_dict(plain.state_dict())
    ids, positions = tiny.tokens(1, 50)
    found = made(ids, positions)[0]
    torch.testing.assert_close(rebuilt(ids, positions)[0], found, rtol=0, atol=1e-12)
    assert extend(plain, 500, method="rerope").config.context_length == 500


@pytest.mark.parametrize(
    ("changes", "target", "message"),
    [
        ({}, "rerope:0", "should read rerope, rerope:W or rerope:W:K"),
        ({}, "rerope:2:3:4", "should read rerope"),
        ({}, "rerope:x", "should read rerope"),
        ({}, 63, "KIND|reads 64 tokens already"),
        ({"position": None}, "rerope:4", "no position encoding that could be extended"),
        ({"position": {"kind": "sinusoidal"}}, "rerope:4", "encoding is 'sinusoidal'"),
        ({"position": {"kind": "linear", "factor": 2.0}}, "rerope:4", "extended already"),
        ({"steps": [tiny.WINDOW]}, "rerope:4", "a layer has window = 4"),
        ({"steps": [tiny.MLP]}, "rerope:4", "has no mixer 'attention'"),
    ],
)
def test_what_does_not_fit(changes: dict[str, Any], target: Any, message: str) -> None:
    steps = changes.pop("steps", STEPS)
    with pytest.raises(ConfigError, match=message):
        extend(tiny.config(steps, **changes), target, method="rerope")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'window' is missing"),
        ({"window": 4, "leak": 1.0}, "greater than 1"),
        ({"window": 4, "kv_heads": 3}, "no multiple of kv_heads"),
        ({"window": 4, "rotary_dim": 8}, "rotary_dim is 8 with head_dim 6"),
        ({"window": 4, "head_dim": 5}, "even number"),
        ({"windw": 4}, "did you mean 'window'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(ReRoPEConfig, {**SIZES, **options}, "rerope")


def test_a_model_must_not_turn_them_twice() -> None:
    step = {"kind": "rerope", "heads": 3, "head_dim": 6, "window": 4}
    made = tiny.model([step])
    with pytest.raises(ConfigError, match="set the model's 'position' to null"):
        made(*tiny.tokens(1, 3))
    tiny.model([step], position={"kind": "sinusoidal"})(*tiny.tokens(1, 3))


def test_gradients_are_those_of_the_captured_form() -> None:
    """Joined fused attentions against the chosen logits, whose gradients are torch's own."""
    from seqmix_rope.clipped import ClippedRule, clipped_attention

    generator = torch.Generator().manual_seed(0)
    sizes = ((2, 4, 11, 6), (2, 2, 17, 6), (2, 2, 17, 6))
    q, k, v = (torch.randn(s, generator=generator, dtype=torch.float64) for s in sizes)
    given = [x.requires_grad_(True) for x in (q, k, v)]
    keys = torch.tensor([list(range(17)), [-1, 0, 1, -1, *range(2, 13), -1, 13]])
    rule = ClippedRule((1.0, 0.1, 0.01), clip=3, window=5, first=2)
    for chosen in (rule, ClippedRule((1.0, 0.3), clip=4, slope=0.5, interleaved=True)):
        found = []
        for compiling in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(torch.compiler, "is_compiling", lambda answer=compiling: answer)
                y = clipped_attention(q, k, v, keys[:, 6:], keys, chosen)
            weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view_as(y)
            found.append([y, *torch.autograd.grad((y * weights).sum(), given)])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "backend", ["onnxruntime", pytest.param("reference", marks=pytest.mark.full)]
)
def test_one_graph_serves_every_length(backend: str) -> None:
    if backend == "onnxruntime":
        pytest.importorskip("onnxruntime")
    made = extend(tiny.model(STEPS), "rerope:9:2")
    compiled = seqmix.compile(made, backend=backend, cache=False)
    for length in (1, 5, 10, 70):
        ids, positions = tiny.tokens(2, length)
        states = seqmix.model.initial_states(made, 2)
        logits, _ = compiled(ids, positions.contiguous(), states)
        torch.testing.assert_close(logits, made(ids, positions)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_half_precision_models_are_near(dtype: str) -> None:
    wide = extend(tiny.model(STEPS), "rerope:9:2")
    narrow = extend(tiny.model(STEPS, dtype=dtype), "rerope:9:2")
    narrow.load_state_dict(wide.state_dict())
    ids, positions = tiny.tokens(1, 60)
    exact = wide(ids, positions)[0]
    error = (narrow(ids, positions)[0].float() - exact).abs().max()
    assert error < 0.1 * exact.abs().max()
