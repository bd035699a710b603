"""Selective attention against full attention and the values of another implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from pydantic import BaseModel
from torch import Tensor

import seqmix
from seqmix import attention_heads
from seqmix.capture import capture_model
from seqmix.config import BlockConfig, Kind, ModelConfig, Strict, build_config
from seqmix.context import Context
from seqmix.errors import ConfigError
from seqmix.model import Model
from seqmix.position import PositionEncoding
from seqmix.state import State, initial_state
from seqmix.testing import check_mixer
from seqmix_hybrid.attention import Attention
from seqmix_hybrid.selective_attention import SelectiveAttention

WIDTH = 12
HEADS = {"heads": 2, "head_dim": 6}
GOLDEN = Path(__file__).parent.parent / "golden" / "zoology" / "sigmoid_lookups.npz"
CAUSAL: list[dict[str, Any]] = [
    {"selection": "learned"},
    {"selection": "learned", "budget": "linear", "budget_factor": 0.3, "output_bias": True},
    {"selection": "learned", "budget": "constant", "budget_factor": 5, "kv_heads": 1},
    {"selection": "programmatic", "output_bias": True},
    {"selection": "programmatic", "budget": "sqrt", "qk_norm": True},
    {"selection": "random", "probability": 0.3},
    {"selection": "random", "probability": 0.5, "budget": "sqrt", "budget_factor": 1.5},
]


class Nothing(Strict):
    pass


class Leaning(PositionEncoding):
    """Shifts queries and keys by their positions, with a bias per distance and a scale per row."""

    Config: ClassVar[type[BaseModel]] = Nothing

    def tables(self, positions: Tensor, context_length: Tensor) -> tuple[Tensor, ...]:
        return (positions.clamp(min=0).double() * 0.3,)

    def rotate_by(self, x: Tensor, tables: tuple[Tensor, ...], role: str) -> Tensor:
        return x + (1.0 if role == "query" else -0.5) * tables[0][:, None, :, None]

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        distance = query_positions[:, :, None] - key_positions[:, None, :]
        return -0.1 * distance.double().unsqueeze(1)

    def logit_scale(self, context_length: Tensor) -> Tensor | float:
        return 1 + context_length.double() / 40


class Late(Leaning):
    """The same with keys that are rotated at use."""

    caches_rotated_keys = False


def build(options: dict[str, Any], width: int = WIDTH) -> SelectiveAttention:
    torch.manual_seed(0)
    config = build_config(SelectiveAttention.Config, {**HEADS, **options}, "here")
    mixer = SelectiveAttention(config, width).double().eval()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer


def fresh(mixer: seqmix.SequenceMixer, batch: int, dtype: torch.dtype = torch.float64) -> State:
    return initial_state(mixer.state_spec(), batch, dtype=dtype)


def context(batch: int, length: int, encoding: PositionEncoding | None = None) -> Context:
    ids = torch.randint(0, 4, (batch, length), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(length).repeat(batch, 1)
    return Context(positions, input_ids=ids, encoding=encoding)


def full(mixer: SelectiveAttention, x: Tensor, ctx: Context) -> Tensor:
    """Attention of all queries with the weights of ``mixer``."""
    options = mixer.config.model_dump(include=set(attention_heads.HeadsConfig.model_fields))
    whole = Attention(build_config(Attention.Config, options, "here"), x.shape[2]).double()
    shared = {k: v for k, v in mixer.state_dict().items() if not k.startswith("selection.")}
    whole.load_state_dict(shared)
    y: Tensor = whole(x, fresh(whole, x.shape[0]), ctx)[0]
    return y


@pytest.mark.parametrize("encoding", [None, Leaning(), Late()])
@pytest.mark.parametrize("options", CAUSAL, ids=str)
def test_it_is_attention_times_the_score_where_selected(
    options: dict[str, Any], encoding: PositionEncoding | None
) -> None:
    mixer, x = build(options), torch.randn(2, 30, WIDTH, dtype=torch.float64)
    ctx, state = context(2, 30, encoding), fresh(mixer, 2)
    y, _ = mixer(x, state, ctx)
    rows, scores, _ = mixer.selection(x, state, ctx)
    chosen = (rows.unsqueeze(2) == torch.arange(30)).any(1)
    assert 2 < chosen.sum() < 50
    expected = full(mixer, x, ctx) * chosen.unsqueeze(2)
    if scores is not None:
        expected = expected * scores.unsqueeze(2)
    torch.testing.assert_close(y, expected)


@pytest.mark.full
@pytest.mark.parametrize("options", SelectiveAttention.examples(), ids=str)
def test_laws_at_full_length_and_in_16_bits(options: dict[str, Any]) -> None:
    check_mixer(SelectiveAttention, options, profile="full").raise_for_failures()


@pytest.mark.parametrize("options", CAUSAL, ids=str)
def test_gradients_reach_every_weight(options: dict[str, Any]) -> None:
    mixer = build(options)
    x = torch.randn(1, 12, WIDTH, dtype=torch.float64, requires_grad=True)
    weights = list(mixer.parameters())

    def run(x: Tensor, *weights: Tensor) -> Tensor:
        y: Tensor = mixer(x, fresh(mixer, 1), context(1, 12))[0]
        return y

    assert torch.autograd.gradcheck(run, (x, *weights), fast_mode=True)
    run(x).square().sum().backward()
    for name, weight in mixer.named_parameters():
        assert weight.grad is not None, name
        # A bias of keys shifts all logits of a query alike.
        assert name == "key.bias" or weight.grad.abs().max() > 0, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", CAUSAL[::2], ids=str)
def test_narrow_models_run_and_train(options: dict[str, Any], dtype: torch.dtype) -> None:
    mixer = build(options).to(dtype).train()
    x = torch.randn(2, 20, WIDTH).to(dtype).requires_grad_()
    y, state = mixer(x, fresh(mixer, 2, dtype), ctx := context(2, 20))
    sum(ctx.aux_losses, y.float().sum()).backward()
    assert y.dtype == dtype == state["key"].dtype
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, 20),
        ({"budget_factor": 2.5}, 50),
        ({"budget": "linear", "budget_factor": 0.01}, 4),
        ({"selection": "programmatic", "budget": "constant", "budget_factor": 7}, 7),
        ({"selection": "top_k_noncausal"}, 20),
    ],
    ids=str,
)
def test_only_as_many_rows_attend_as_the_budget_has(
    options: dict[str, Any], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def watched(q: Tensor, *rest: Any, **more: Any) -> Tensor:
        seen.append(q.shape[2])
        return seqmix.ops.attention(q, *rest, **more)

    monkeypatch.setattr(attention_heads, "attention", watched)
    mixer, x = build(options), torch.randn(1, 400, WIDTH, dtype=torch.float64)
    mixer(x, fresh(mixer, 1), context(1, 400))
    assert seen == [rows]


def test_without_a_budget_torch_attends_for_the_fullest_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def watched(q: Tensor, *rest: Any, **more: Any) -> Tensor:
        seen.append(q.shape[2])
        return seqmix.ops.attention(q, *rest, **more)

    monkeypatch.setattr(attention_heads, "attention", watched)
    mixer = build({"selection": "programmatic"})
    for row, rows in (([5, 6, 7, 8, 9, 10], 1), ([1, 2, 1, 2, 1, 2], 3)):
        ids = torch.tensor([row, [0, 1, 2, 3, 4, 5]])
        ctx = Context(torch.arange(6).repeat(2, 1), input_ids=ids)
        mixer(torch.randn(2, 6, WIDTH, dtype=torch.float64), fresh(mixer, 2), ctx)
        assert seen.pop() == rows


def model(options: dict[str, Any], layers: int = 2) -> Model:
    torch.manual_seed(4)
    step = Kind(kind="selective_attention", **HEADS, **options)
    config = ModelConfig(
        vocab_size=11,
        width=WIDTH,
        context_length=512,
        blocks=[BlockConfig(repeat=layers, steps=[step])],
        init_std=1.0,
    )
    built = Model(config).eval()
    for name, parameter in built.named_parameters():
        if "selection" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    return built


FULL = pytest.mark.full


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, "min(S, isqrt(P + S - 1) + 1)"),
        pytest.param(
            {"budget_factor": 1.5}, "min(S, floordiv(isqrt(9*P + 9*S - 1), 2) + 1)", marks=FULL
        ),
        pytest.param(
            {"budget": "linear", "budget_factor": 0.25},
            "min(S, floordiv(P + S + 3, 4))",
            marks=FULL,
        ),
        pytest.param(
            {"selection": "random", "budget": "constant", "budget_factor": 9},
            "min(S, 9)",
            marks=FULL,
        ),
        pytest.param({"selection": "programmatic"}, "S", marks=FULL),
        ({"selection": "top_k_noncausal"}, "min(S, isqrt(S - 1) + 1)"),
    ],
    ids=str,
)
def test_the_size_of_the_graph_is_bounded(options: dict[str, Any], rows: str) -> None:
    graph = capture_model(model(options, 1)).module.graph("forward")
    queries = [op.operands[0] for op in graph.block.ops if op.name == "attention"]
    assert [str(q.type.shape[2]) for q in queries if q is not None] == [rows]


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"selection": "programmatic", "budget": "sqrt"}, marks=FULL)],
    ids=str,
)
def test_one_onnx_file_serves_prompts_of_any_length_and_steps(options: dict[str, Any]) -> None:
    pytest.importorskip("onnxruntime")
    built = model(options)
    running = seqmix.compile(built, backend="onnxruntime", cache=False)
    ids = torch.randint(0, 11, (2, 150), generator=torch.Generator().manual_seed(2))
    positions = torch.arange(150).repeat(2, 1)
    with torch.no_grad():
        expected, _ = built(ids, positions)
    states = None
    for start, stop in (
        (0, 1),
        (1, 40),
        (40, 42),
        (42, 145),
        *((t, t + 1) for t in range(145, 150)),
    ):
        piece = slice(start, stop)
        logits, states = running(ids[:, piece], positions[:, piece], states)
        torch.testing.assert_close(logits, expected[:, piece], atol=1e-4, rtol=1e-4)


def golden(training: bool) -> tuple[SelectiveAttention, dict[str, Tensor]]:
    """The peer's layer of width 8 and one head, and its values."""
    with np.load(GOLDEN) as file:
        values = {name: torch.from_numpy(file[name]) for name in file.files}
    options = {
        "heads": 1, "head_dim": 8, "bias": True, "output_bias": True,
        "selection": "top_k_noncausal", "dense_training": True, "sparsity_penalty": 0.5,
        "budget": "constant", "budget_factor": 3,
    }  # fmt: skip
    mixer = SelectiveAttention(build_config(SelectiveAttention.Config, options, "here"), 8)
    weights = {"selection.score.weight": values["p.selecting.weight"]}
    weights["selection.score.bias"] = torch.zeros(1)
    for kind in ("weight", "bias"):
        parts = values[f"p.Wqkv.{kind}"].chunk(3)
        for name, part in zip(("query", "key", "value"), parts, strict=True):
            weights[f"{name}.{kind}"] = part
        weights[f"output.{kind}"] = values[f"p.out_proj.{kind}"]
    mixer.load_state_dict(weights)
    return mixer.train(training), values


@pytest.mark.parametrize("training", [True, False])
def test_the_values_of_the_paper(training: bool) -> None:
    mixer, values = golden(training)
    x, ctx = values["x"], context(2, 16)
    y, _ = mixer(x, fresh(mixer, 2, torch.float32), ctx)
    wanted = values["y_train" if training else "y_eval"]
    torch.testing.assert_close(x + y, wanted, atol=1e-5, rtol=1e-5)
    assert len(ctx.aux_losses) == training
    for loss in ctx.aux_losses:
        torch.testing.assert_close(loss, values["aux"])


def test_top_k_is_not_causal_and_the_learned_rule_is() -> None:
    x = torch.randn(1, 30, WIDTH, dtype=torch.float64)
    changed = x.clone()
    changed[:, 20:] *= 9
    moved = {}
    for selection in ("top_k_noncausal", "learned"):
        mixer = build({"selection": selection})
        first, second = (mixer(v, fresh(mixer, 1), context(1, 30))[0] for v in (x, changed))
        moved[selection] = not torch.equal(first[:, :20], second[:, :20])
    assert moved == {"top_k_noncausal": True, "learned": False}
    assert not any(o.get("selection") == "top_k_noncausal" for o in SelectiveAttention.examples())


@pytest.mark.parametrize("selection", ["learned", "top_k_noncausal"])
def test_dense_training_is_full_attention_times_the_scores(selection: str) -> None:
    mixer = build({"selection": selection, "dense_training": True}).train()
    x, ctx = torch.randn(2, 9, WIDTH, dtype=torch.float64), context(2, 9)
    y, state = mixer(x, fresh(mixer, 2), ctx)
    scores = torch.sigmoid(mixer.selection.logits(x)).unsqueeze(2)
    torch.testing.assert_close(y, full(mixer, x, ctx) * scores)
    counted = mixer.eval()(x, fresh(mixer, 2), context(2, 9))[1]
    assert all(torch.equal(state[key], counted[key]) for key in counted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"selection": "learnt"}, "'learned', 'programmatic', 'random' or 'top_k_noncausal'"),
        ({"selection": "random", "threshold": 0.4}, "selection 'random' has no 'threshold'"),
        ({"seed": 3}, "selection 'learned' has no 'seed', it has budget"),
        ({"selection": "random", "budget_factor": 2}, "'budget_factor' needs 'budget'"),
        ({"selection": "random", "probability": 1.5}, "less than or equal to 1, found 1.5"),
        ({"budget": "cubic"}, "'sqrt', 'linear' or 'constant', found 'cubic'"),
        ({"window": 4}, "unknown key 'window'"),
        ({"kv_heads": 3}, "heads = 2 is no multiple of kv_heads = 3"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_explained(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(SelectiveAttention.Config, {**HEADS, **options}, "here")


def test_flops_grow_with_the_budget() -> None:
    each = WIDTH * WIDTH  # Every projection: two heads of 6.
    pairs = 20 * 401 // 2
    learned = 400 * (2 * each + WIDTH) + 20 * 2 * each + 2 * pairs * WIDTH
    assert build({}).flops(3, 400) == 2 * 3 * learned
    everything = build({"selection": "programmatic"}).flops(1, 400)
    whole = Attention(build_config(Attention.Config, HEADS, "here"), WIDTH).flops(1, 400)
    assert everything == whole
    step = 2 * each + WIDTH + 2 * each + 2 * 400 * WIDTH
    assert build({}).step_flops(3, 399) == 2 * 3 * step
