"""The conformance kit finds what is wrong with a mixer, names it, and lets good ones pass."""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar

import pytest
import torch
from tests.mixers import ShortConv
from torch import Tensor, nn

import seqmix
from seqmix.config import ModelConfig, build_config
from seqmix.context import Context
from seqmix.errors import BackendError, ConfigError
from seqmix.mixer import SequenceMixer
from seqmix.model import Model
from seqmix.state import State, StateSpec
from seqmix.testing import CheckReport, Row, check_mixer, check_model
from seqmix.testing.inputs import distance, with_padding

WIDTH = 6


class NoOptions(seqmix.Strict):
    """Nothing to choose."""


class Sound(SequenceMixer):
    """A running sum of projected tokens; each subclass below spoils one thing."""

    Config: ClassVar[type[NoOptions]] = NoOptions

    def __init__(self, config: NoOptions, width: int) -> None:
        super().__init__()
        self.width = width
        self.input = nn.Linear(width, width)

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        total = state["total"].unsqueeze(1) + self.masked(self.input(x), ctx).cumsum(1)
        return self.masked(self.out(total), ctx), {"total": total[:, -1]}

    def out(self, total: Tensor) -> Tensor:
        return torch.tanh(total)

    def masked(self, x: Tensor, ctx: Context) -> Tensor:
        return x * ctx.valid.unsqueeze(-1).to(x.dtype)

    def state_spec(self) -> dict[str, StateSpec]:
        return {"total": StateSpec(("B", self.width), role="recurrent")}

    def flops(self, batch_size: int, seq_len: int) -> int:
        return 2 * batch_size * seq_len * self.width**2


class LooksAhead(Sound):
    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        y, after = super().forward(x, state, ctx)
        return self.masked(y + 1e-9 * x.mean(1, keepdim=True), ctx), after


class Forgets(Sound):
    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        return super().forward(x, {"total": 0 * state["total"]}, ctx)


class ReadsPadding(Sound):
    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        total = state["total"].unsqueeze(1) + self.input(x).cumsum(1)
        return self.masked(self.out(total), ctx), {"total": total[:, -1]}


class WritesAtPadding(Sound):
    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        total = state["total"].unsqueeze(1) + self.masked(self.input(x), ctx).cumsum(1)
        return self.out(total), {"total": total[:, -1]}


class TakesFirstRowsPadding(Sound):
    def masked(self, x: Tensor, ctx: Context) -> Tensor:
        return x * ctx.valid[:1].unsqueeze(-1).to(x.dtype)


class WritesToItsState(Sound):
    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        y, after = super().forward(x, state, ctx)
        with torch.no_grad():
            state["total"].add_(1)
        return y, after


class Remembers(Sound):
    calls = 0

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        self.calls += 1
        y, after = super().forward(x, state, ctx)
        return y * (1 + 1e-13 * self.calls), after


class NarrowState(Sound):
    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        y, after = super().forward(x, {"total": state["total"].to(x.dtype)}, ctx)
        return y, {"total": after["total"].to(torch.float32)}


class WideState(Sound):
    """Keeps its sum in float32 at least."""

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        values = self.masked(self.input(x), ctx).to(state["total"].dtype)
        total = state["total"].unsqueeze(1) + values.cumsum(1)
        return self.masked(self.out(total).to(x.dtype), ctx), {"total": total[:, -1]}

    def state_spec(self) -> dict[str, StateSpec]:
        return {"total": StateSpec(("B", self.width), "f32", role="recurrent")}


class OtherState(Sound):
    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        y, after = super().forward(x, state, ctx)
        return y, {**after, "extra": y}


class WrongGradient(Sound):
    def out(self, total: Tensor) -> Tensor:
        return torch.tanh(total) + total.detach()


class WrongWeightGradient(Sound):
    def out(self, total: Tensor) -> Tensor:
        bias = self.input.bias
        return torch.tanh(total) * (bias + bias.detach())


class Branches(Sound):
    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        if float(x.detach().sum()) > 1e9:
            return super().forward(x + 1, state, ctx)
        return super().forward(x, state, ctx)


def check(mixer: Any, **options: Any) -> CheckReport:
    return check_mixer(mixer, width=WIDTH, **{"backends": ("reference",), **options})


def test_a_sound_mixer_passes_and_every_promise_is_tried() -> None:
    report = check(Sound, backends=("torch", "reference"))
    report.raise_for_failures()
    assert {row.check for row in report.rows} == {
        "shapes",
        "splitting",
        "splitting, state",
        "padding",
        "padding, outputs 0",
        "padding, afterwards",
        "padding, nothing else",
        "causality",
        "purity, arguments kept",
        "purity, same again",
        "gradients",
        "capture",
        "text round trip",
        "step",
        "prefill",
        "prefill with state",
    }


@pytest.mark.parametrize(
    ("mixer", "broken"),
    [
        (LooksAhead, "causality"),
        (Forgets, "splitting"),
        (ReadsPadding, "padding"),
        (WritesAtPadding, "padding, outputs 0"),
        (TakesFirstRowsPadding, "padding"),
        (WritesToItsState, "purity, arguments kept"),
        (Remembers, "purity, same again"),
        (NarrowState, "shapes"),
        (OtherState, "shapes"),
        (WrongGradient, "gradients"),
        (WrongWeightGradient, "gradients"),
        (Branches, "capture"),
    ],
)
def test_each_broken_law_is_found(mixer: type[SequenceMixer], broken: str) -> None:
    report = check(mixer)
    assert broken in {row.check for row in report.failures}
    with pytest.raises(AssertionError, match=rf"{mixer.__name__}.*\n(.*\n)*.*{broken} \("):
        report.raise_for_failures()


def test_padding_that_differs_between_rows_is_what_tells_them_apart() -> None:
    details = {r.detail for r in check(TakesFirstRowsPadding).failures if r.check == "padding"}
    assert details == {"one row left, one right"}


def test_an_instance_keeps_its_weights() -> None:
    mixer = Sound(NoOptions(), WIDTH)
    before = mixer.input.weight.detach().clone()
    check(mixer).raise_for_failures()
    assert torch.equal(mixer.input.weight, before)
    assert mixer.input.weight.dtype == torch.float32
    with pytest.raises(ConfigError, match="built already"):
        check(mixer, options={})


def test_options_pick_one_example() -> None:
    report = check(ShortConv, options={"taps": 2})
    report.raise_for_failures()
    assert all(row.where.startswith("taps=2 ") for row in report.rows)


def test_the_full_profile_tries_narrow_dtypes() -> None:
    report = check(Sound, profile="full")
    report.raise_for_failures()
    tried = {row.where for row in report.rows if row.check == "prefill"}
    assert tried == {"reference f32", "reference bf16", "reference f16"}
    worst = {row.where: row.error for row in report.summary() if row.check == "prefill"}
    assert worst["reference bf16"] > worst["reference f16"] > worst["reference f32"]


def test_a_state_wider_than_the_model_is_welcome() -> None:
    check(WideState, profile="full", backends=("torch", "reference")).raise_for_failures()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'fast' is unknown; known: quick, full"):
        check(Sound, profile="fast")
    with pytest.raises(ConfigError, match="unknown key 'tap'; did you mean 'taps'"):
        check(ShortConv, options={"tap": 2})


def test_a_backend_that_is_asked_for_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from seqmix.backend import Availability
    from seqmix.backends.reference import ReferenceBackend

    class Absent(ReferenceBackend):
        name = "absent"

        def probe(self) -> Availability:
            return Availability((), "it is a fiction")

    from seqmix import registry

    known = registry.get
    monkeypatch.setattr(registry, "names", lambda kind: ["reference", "absent"])
    monkeypatch.setattr(
        registry, "get", lambda kind, name: Absent if name == "absent" else known(kind, name)
    )
    report = check(Sound, backends=None)
    report.raise_for_failures()
    assert report.notes == [
        "backend 'absent' was not checked: backend 'absent' is not available here: it is a fiction"
    ]
    with pytest.raises(BackendError, match="it is a fiction"):
        check(Sound, backends=["absent"])


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5 / 2.5),
        ([0.0, 0.25], [0.0, 0.5], 0.25),
        ([-math.inf, 1.0], [-math.inf, 1.0], 0.0),
        ([-math.inf, 1.0], [-math.inf, 3.0], 2 / 3),
        ([math.nan, 1.0], [0.0, 1.0], math.inf),
        ([0.0, 1.0], [0.0, math.nan], math.inf),
        ([0.0, math.inf], [0.0, 1.0], math.inf),
        ([0.0], [0.0, 0.0], math.inf),
        ([], [], 0.0),
    ],
)
def test_distance(a: list[float], b: list[float], expected: float) -> None:
    left, right = torch.tensor(a), torch.tensor(b)
    assert distance(left, right) == pytest.approx(expected)
    zero = torch.zeros(1)
    assert distance({"z": zero, "x": left}, {"z": zero, "x": right}) == pytest.approx(expected)
    assert distance({"x": left}, {"y": right}) == math.inf


def test_padding_stands_where_it_should() -> None:
    x = torch.arange(8.0).reshape(2, 2, 2)
    rows = [[False, True, True], [True, False, True]]
    wide, positions, keep = with_padding(x, rows, start=5)
    assert positions.tolist() == [[-1, 5, 6], [5, -1, 6]]
    assert torch.equal(wide[keep], x.reshape(4, 2))
    assert (wide[~keep] == 37).all()


def test_a_report_shows_the_worst_of_each_kind() -> None:
    rows = [
        Row("step", "x f32", 1e-7, 1e-5),
        Row("step", "x f32", 1e-4, 1e-5, "S=1"),
        Row("prefill", "x f32", math.nan, 1e-5),
        Row("prefill", "x f32", 0.0, 1e-5),
    ]
    report = CheckReport("mixer 'x'", rows)
    assert [row.error for row in report.summary()] == pytest.approx([1e-4, math.nan], nan_ok=True)
    assert not report.ok
    assert report.table().row_count == 2
    content = json.loads(report.to_json())
    assert [row["ok"] for row in content["rows"]] == [True, False, False, True]
    assert not CheckReport("nothing was tried").ok


def tiny_model() -> Model:
    step = {"kind": "mlp", "hidden": 5}
    options = {"vocab_size": 17, "width": 8, "context_length": 64, "blocks": [{"steps": [step]}]}
    torch.manual_seed(0)
    return Model(build_config(ModelConfig, options, "tiny")).eval()


def test_models_are_compared_at_every_length_and_entry() -> None:
    model = tiny_model()
    executable = seqmix.compile(model, "reference", cache=False)
    report = check_model(model, {"reference": executable}, lengths=(1, 5), past=3)
    report.raise_for_failures()
    found = [(row.check, row.where, row.detail) for row in report.rows]
    assert found == [
        ("step", "reference f32", "B=2 S=1 P=0"),
        ("prefill", "reference f32", "B=2 S=5 P=0"),
        ("step", "reference f32", "B=2 S=1 P=3"),
        ("prefill with state", "reference f32", "B=2 S=5 P=3"),
    ]


def test_a_model_that_differs_is_found() -> None:
    model = tiny_model()
    executable = seqmix.compile(tiny_model(), "reference", cache=False)
    with torch.no_grad():
        model.head.weight += 0.1
    report = check_model(model, {"reference": executable}, lengths=(1, 5), past=3)
    assert len(report.failures) == 4
