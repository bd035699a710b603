"""MQAR sweeps: recipes, presets, tables, plots, and the command that makes them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqmix.cli import invoke
from seqmix.config import Kind
from seqmix.errors import ConfigError
from seqmix.model import Model
from seqmix.state import state_bytes
from seqmix.training.rows import IGNORED
from seqmix.training.sweeps.sweep import Sweep
from seqmix.training.task import build_task
from seqmix_recall.attended import attended_share
from seqmix_recall.best import best_rates
from seqmix_recall.mqar_sweep import MQARSweep, Shape, costs_of
from seqmix_recall.presets import PRESETS, preset
from seqmix_recall.recipes import PARTS, model_of

TINY = [
    "--vocab-size", "16", "--kv", "16:2", "--train-rows", "64", "--test-rows", "16",
    "--batch", "16", "--steps", "3", "--workers", "0",
]  # fmt: skip


def tiny(**changes: Any) -> MQARSweep:
    options = {
        "mixers": ["base_conv"], "dims": [8], "shapes": [Shape(length=16, pairs=2)],
        "rates": [0.01], "vocab_size": 16, "train_rows": 64, "test_rows": 16, "batch": 16,
        "steps": 3,
    }  # fmt: skip
    return MQARSweep.model_validate({**options, **changes})


def kinds(recipe: str, layers: int = 2) -> list[dict[str, Any]]:
    config = model_of(recipe, width=16, length=32, layers=layers, vocab_size=20)
    return [{"kind": kind.kind, **kind.options} for kind in config.branches()]


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "recipe", [*PARTS, "based", "based:4", "s4d", "short_conv+rwkv4_channel_mix"]
)
def test_every_recipe_makes_a_model_that_runs(recipe: str) -> None:
    config = model_of(recipe, width=16, length=12, layers=2, vocab_size=20)
    model = Model(config)
    ids = torch.arange(24).reshape(2, 12) % 20
    logits, _ = model(ids, torch.arange(12).repeat(2, 1))
    assert logits.shape == (2, 12, 20)
    assert logits.isfinite().all()


def test_recipes_are_those_of_the_paper() -> None:
    short = {"kind": "base_conv", "taps": 3}
    first, second, third, fourth = kinds("base_conv", layers=4)
    assert (first, third) == (short, short)
    assert second == fourth
    assert (second["filter"], second["implicit"]) == ("implicit", {"reference_length": 32})
    assert kinds("based") == [short, {"kind": "linear_attention", "feature_dim": 8}]
    assert kinds("based:5")[1]["feature_dim"] == 5
    assert [kind["kind"] for kind in kinds("base_conv+attention", 4)] == [
        "base_conv", "attention", "base_conv", "attention",
    ]  # fmt: skip
    assert kinds("base_conv+attention", 4)[2] == short
    assert kinds("h3")[0]["state_size"] == 32
    assert kinds("h3:6")[0]["state_size"] == 6
    assert [kind["block"] for kind in kinds("rwkv4", 3)] == [0, 1, 2]
    assert kinds("attention:4")[0]["head_dim"] == 4


def test_attention_alone_has_learned_positions() -> None:
    for recipe, expected in (("attention", "learned"), ("learned", "learned"), ("hyena", None)):
        config = model_of(recipe, width=16, length=32, layers=2, vocab_size=20)
        assert (config.position.kind if config.position else None) == expected
    assert model_of("base_conv+attention", width=8, length=9, layers=2, vocab_size=9).position is (
        None
    )


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("atention", r"no recipe 'atention'; did you mean 'attention'"),
        ("base_conv+hyna", r"mixers 'base_conv\+hyna': no recipe 'hyna'.*'hyena'"),
        ("base_conv:4", "'base_conv' has no size; write 'base_conv' alone"),
        ("based:x", "'x' behind 'linear_attention:' should be its size of a query"),
        ("h3:0", "should be its state size"),
        ("based+attention", "3 in turn, but layers = 2"),
    ],
)
def test_recipes_that_do_not_fit(recipe: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_of(recipe, width=16, length=32, layers=2, vocab_size=20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixers": ["h3"], "dims": [15]}, "mixers 'h3' at width 15: .*head_dim"),
        ({"mixers": ["attention:3"]}, "width 8 is no multiple of 3 heads"),
        ({"mixers": ["lm_infinite"]}, r"'lm_infinite' at width 8: .*'heads' is missing"),
        ({"shapes": [{"length": 16, "pairs": 5}]}, "rows of 16 tokens with 5 pairs: .*need 20"),
        ({"vocab_size": 4}, "fewer than the 2 of a row"),
        ({"batch": 65, "steps": 1, "train_rows": 64}, None),
    ],
)
def test_sweeps_that_do_not_fit(changes: dict[str, Any], message: str | None) -> None:
    if message is None:  # Rows and batch are checked by the trainer, as a failure of that run.
        assert tiny(**changes).runs()[0].training.training.batch == 65
        return
    with pytest.raises(ConfigError, match=message):
        tiny(**changes).runs()


def test_a_run_per_point_of_the_grid() -> None:
    sweep = tiny(
        mixers=["base_conv", "based:4"], dims=[8, 16], rates=[0.1, 0.01], seeds=[0, 1],
        shapes=[Shape(length=16, pairs=2), Shape(length=24, pairs=3, batch=8)],
        steps=None, epochs=2, layers_of={"base_conv": 3},
    )  # fmt: skip
    runs = sweep.runs()
    assert len(runs) == len({run.name for run in runs}) == 32
    first, last = runs[0], runs[-1]
    assert first.name == "base_conv-d8-l16-kv2-r0.1-s0"
    assert last.name == "based_4-d16-l24-kv3-r0.01-s1"
    assert (first.labels["layers"], last.labels["layers"]) == (3, 2)
    assert (first.training.training.steps, last.training.training.steps) == (8, 16)
    assert last.training.training.lowest == 0
    assert {run.training.training.seed for run in runs} == {0, 1}


def test_bytes_of_state_are_those_of_the_mixers() -> None:
    config = model_of("base_conv+attention", width=16, length=32, layers=2, vocab_size=20)
    model = Model(config)
    expected = sum(state_bytes(specs, 1, 32, dtype=torch.float32) for specs in model.state_specs())
    assert costs_of(config, 32).bytes == expected
    # Two inputs of 16 channels; keys and values of 32 tokens, and an int64 position for each.
    assert expected == 2 * 16 * 4 + 32 * (2 * 16 * 4 + 8)


def test_figure_2_has_as_many_runs_as_the_paper() -> None:
    sweep = preset("figure2")
    assert sweep.count() == 448
    # One width and rate of every model and shape; the full profile builds them all.
    part = sweep.model_copy(update={"dims": [64], "rates": sweep.rates[:1]})
    assert part.count() == len(part.runs()) == 28


@pytest.mark.full
def test_figure_2_is_the_papers_grid() -> None:
    sweep = preset("figure2")
    runs = sweep.runs()
    assert len(runs) == 448 == len({run.name for run in runs})
    labels = [run.labels for run in runs]
    shapes = {(label["length"], label["pairs"]) for label in labels}
    assert shapes == {(64, 4), (128, 8), (256, 16), (512, 64)}
    assert {label["width"] for label in labels} == {64, 128, 256, 512}
    rates = sorted(float(str(rate)) for rate in {label["rate"] for label in labels})
    assert rates == pytest.approx(np.logspace(-4, -2, 4).tolist(), rel=1e-5)
    assert {label["layers"] for label in labels if label["mixer"] == "attention"} == {2}
    assert {label["layers"] for label in labels if label["mixer"] != "attention"} == {4}
    steps = {run.labels["length"]: run.training.training.steps for run in runs}
    assert steps == {64: 64 * 195, 128: 64 * 195, 256: 64 * 390, 512: 64 * 781}
    assert {build_task(run.training.task).config.train_rows for run in runs} == {100_000}


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "figure2"])
def test_the_other_presets_can_be_built(name: str) -> None:
    sweep = preset(name)
    runs = sweep.runs()
    assert len(runs) == len(sweep.mixers) * len(sweep.dims) * len(sweep.rates) == sweep.count()
    assert len({run.name for run in runs}) == len(runs)


def test_a_mixture_is_padded_and_reported_by_portion() -> None:
    portions = [
        {"length": 24, "pairs": 3, "train_rows": 10, "test_rows": 6},
        {"length": 12, "pairs": 3, "test_rows": 4},
    ]
    task = build_task(
        Kind(
            kind="mqar", vocab_size=16, length=16, pairs=2, train_rows=20, test_rows=5,
            mixture=portions,
        )
    )  # fmt: skip
    assert (len(task.train), len(task.held_out)) == (30, 15)
    batch = task.train.take(np.array([19, 20, 3]))
    assert batch.inputs.shape == (3, 24)
    assert batch.positions[:, 15].tolist() == [15, 15, 15]
    assert batch.positions[:, 16].tolist() == [-1, 16, -1]
    assert (batch.targets[0, 16:] == IGNORED).all()
    assert (batch.targets != IGNORED).sum(1).tolist() == [2, 3, 2]
    assert task.held_out.take(np.array([11, 14])).inputs.shape == (2, 12)
    report = task.report(Model(model_of("based", width=8, length=24, layers=2, vocab_size=16)))
    assert report["questions"] == 5 * 2 + 6 * 3 + 4 * 3
    assert {"accuracy_16_2", "accuracy_24_3", "accuracy_12_3"} < set(report)
    with pytest.raises(ConfigError, match=r"mixture\.0: length = 4, but 6 tokens"):
        build_task(Kind(kind="mqar", mixture=[{"length": 4, "pairs": 3}]))


def test_attended_positions_are_counted() -> None:
    torch.manual_seed(0)
    config = model_of("base_conv+learned", width=16, length=32, layers=4, vocab_size=20)
    model = Model(config)
    rows = build_task(Kind(kind="mqar", vocab_size=20, length=32, train_rows=8, test_rows=9))
    counted: list[int] = []
    for branch in model.branches():
        if hasattr(branch.mixer, "selection"):
            branch.mixer.selection.register_forward_hook(
                lambda _, __, choice: counted.extend((choice.rows >= 0).sum(1).tolist())
            )
    found = attended_share(model, rows.held_out, rows_at_once=4)
    assert len(counted) == 18
    assert found == {
        "attended_share": pytest.approx(sum(counted) / (18 * 32)), "attended_most": max(counted),
    }  # fmt: skip
    assert max(counted) <= 15  # 2.5 sqrt(32), rounded up.
    assert model.training
    plain = Model(model_of("base_conv", width=16, length=32, layers=2, vocab_size=20))
    assert attended_share(plain, rows.held_out) == {}


def test_the_best_rate_is_the_best_over_all_seeds() -> None:
    def row(rate: float, seed: int, accuracy: float | None, status: str = "finished") -> Any:
        return {
            "mixer": "m", "width": 8, "layers": 2, "length": 16, "pairs": 2, "rate": rate,
            "seed": seed, "held_out_accuracy": accuracy, "status": status, "state_bytes": 5,
            "parameters": 7,
        }  # fmt: skip

    rows = [
        row(0.1, 0, 0.9), row(0.1, 1, None, "diverged"), row(0.01, 0, 0.5), row(0.01, 1, 0.6),
        row(1.0, 0, None, "failed"),
    ]  # fmt: skip
    (best,) = best_rates(rows)
    assert (best.rate, best.seeds) == (0.01, 2)
    assert best.accuracy == pytest.approx(0.55)
    assert (best.lowest, best.highest) == (0.5, 0.6)
    assert best_rates([row(0.1, 0, None, "waiting")]) == []


def test_the_command_makes_tables_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lightning_fabric")
    pytest.importorskip("matplotlib")
    out = tmp_path / "sweep"
    command = ["eval", "mqar", "--mixers", "base_conv,base_conv+learned", "--dims", "8,12"]
    command += [*TINY, "--rates", "0.01,0.001", "--out", str(out)]
    assert invoke(command) == 0
    rows = table(out / "table.csv")
    assert len(rows) == 8
    assert {row["status"] for row in rows} == {"finished"}
    assert rows[0]["attended_share"] == ""
    assert 0 <= float(rows[-1]["attended_share"]) <= 10 / 16  # 2.5 sqrt(16).
    best = table(out / "best.csv")
    assert [row["width"] for row in best] == ["8", "12", "8", "12"]
    chosen = [r for r in rows if r["mixer"] == "base_conv" and r["width"] == "8"]
    assert best[0]["accuracy"] == max(r["held_out_accuracy"] for r in chosen)
    for name in ("accuracy_by_width.png", "accuracy_by_state.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr()
    assert printed.out.count("accuracy") == 4
    before = (out / "table.csv").read_bytes()
    assert invoke(command) == 0
    assert "8 runs, 8 of them done" in capsys.readouterr().err
    assert (out / "table.csv").read_bytes() == before


def test_an_interrupted_command_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Sweep, executor: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sweep, "run", interrupted)
    command = ["eval", "mqar", "--mixers", "base_conv", "--dims", "8", *TINY]
    assert invoke([*command, "--out", str(tmp_path)]) == 130
    assert "interrupted with 1 runs left; the same command goes on" in capsys.readouterr().err
    assert table(tmp_path / "table.csv")[0]["status"] == "waiting"


def test_a_failed_run_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["eval", "mqar", "--mixers", "base_conv", "--dims", "8", *TINY, "--batch", "65"]
    assert invoke([*command, "--out", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "base_conv-d8-l16-kv2-r0.01-s0 has failed: ConfigError: training has 64 rows" in error
    assert not (tmp_path / "accuracy_by_width.png").exists()


def test_the_command_lists_what_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["eval", "mqar", "--mixers", "base_conv", "--dims", "8,12", *TINY, "--list"]
    assert invoke(command) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("base_conv-d8-l16-kv2-r0.01-s0: 3 steps of 16 rows, ")
    assert printed[-1].startswith("2 runs, at most ")
    assert invoke(["eval", "mqar", "--recipes"]) == 0
    assert "base_conv+attention" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mixers", "hyna"], "no recipe 'hyna'; did you mean 'hyena'"),
        (["--mixers", "h3", "--dims", "9"], "mixers 'h3' at width 9"),
        (["--dims", "8.5"], "--dims should be integers such as 64,128, found '8.5'"),
        (["--dims", "0"], "dims.0"),
        (["--dims", "8,8"], "dims lists 8 twice"),
        (["--kv", "16"], "--kv should be tokens and pairs such as 64:4,128:8, found '16'"),
        (["--kv", "16:5"], "rows of 16 tokens with 5 pairs"),
        (["--rates", "fast"], "--rates should be numbers"),
        (["--preset", "figure3"], "no preset 'figure3'; did you mean 'figure2'"),
        (["--steps", "3", "--epochs", "2"], "either steps or epochs"),
        ([], "--out is missing"),
    ],
)
def test_options_that_do_not_fit(
    tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--out", str(tmp_path)] if options else []
    assert invoke(["eval", "mqar", *options, *where]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
