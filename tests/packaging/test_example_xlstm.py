"""The xLSTM example: its streams, its checkpoints, and the whole of it in small."""

from __future__ import annotations

import csv
import importlib
import math
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from seqmix.errors import CheckpointError, ConfigError
from seqmix.model import Model
from seqmix_xlstm.families import xlstm_block_stack_config

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
TEXT = "".join(f"Line {i}: the quick brown fox, and {i * i} dogs.\n" for i in range(60)).encode()
TIMES = {"seconds"}

# Scripts that import their neighbours, as a script does.
sys.path.insert(0, str(EXAMPLES))
training: Any = importlib.import_module("text_training")
example: Any = importlib.import_module("xlstm_text")
sys.path.remove(str(EXAMPLES))


def make_trainer(text: bytes = TEXT, **changes: Any) -> Any:
    options = {"steps": 7, "streams": 2, "segment": 8, "warm_up": 2, "log_every": 2}
    options |= {"validate_every": 3, **changes}
    torch.manual_seed(0)
    model = Model(xlstm_block_stack_config(256, 16, 2, ratio="1:1", heads=2, round_up_to=16))
    return training.Trainer(model, training.Plan(**options), text, TEXT[:40])


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def test_segments_of_a_stream_follow_each_other() -> None:
    streams = training.Streams(TEXT, 3, 10)
    each = (len(TEXT) - 1) // 3
    seen = [bytearray() for _ in range(3)]
    for step in range(streams.segments):
        inputs, targets, positions = streams.at(step)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        assert positions.tolist() == [list(range(10 * step, 10 * step + 10))] * 3
        for row, ids in zip(seen, inputs.tolist(), strict=True):
            row.extend(ids)
    for number, row in enumerate(seen):
        assert bytes(row) == TEXT[number * each :][: len(row)]


def test_the_target_of_a_segments_last_byte_is_the_next_segments_first() -> None:
    streams = training.Streams(TEXT, 2, 8)
    for before, after in pairwise(range(streams.segments)):
        assert torch.equal(streams.at(before)[1][:, -1], streams.at(after)[0][:, 0])


def test_behind_the_last_segment_the_streams_begin_anew() -> None:
    streams = training.Streams(TEXT, 2, 8)
    assert [streams.begins(s) for s in (0, 1, streams.segments)] == [True, False, True]
    for first, again in zip(streams.at(0), streams.at(streams.segments), strict=True):
        assert torch.equal(first, again)


def test_a_text_of_exactly_one_segment_is_enough_and_a_byte_less_is_not() -> None:
    assert training.Streams(TEXT[:17], 2, 8).segments == 1
    with pytest.raises(ConfigError, match="the text has 16 bytes; 2 x 8 are read at once"):
        training.Streams(TEXT[:16], 2, 8)


def test_the_learning_rate_rises_then_falls_to_a_tenth() -> None:
    plan = training.Plan(steps=50, rate=1.0, warm_up=10)
    rates = [training.learning_rate(step, plan) for step in range(50)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(training.LOWEST)
    assert training.learning_rate(0, training.Plan(steps=1, warm_up=1)) == 3e-3


def test_states_are_carried_detached() -> None:
    carried, fresh = make_trainer(), make_trainer()
    for trainer in (carried, fresh):
        trainer.advance()
    assert all(not t.requires_grad for state in carried.states for t in state.values())
    assert any(bool(t.any()) for state in carried.states for t in state.values())
    fresh.states = None
    assert carried.advance() != fresh.advance()


def test_an_epoch_ends_with_empty_states() -> None:
    trainer = make_trainer(TEXT[: 2 * 8 + 1])
    trainer.advance()
    forgetful = make_trainer(TEXT[: 2 * 8 + 1])
    forgetful.advance()
    forgetful.states = None
    assert trainer.advance() == forgetful.advance()


def test_training_learns() -> None:
    trainer = make_trainer(steps=60, rate=1e-2)
    losses = [trainer.advance() for _ in range(60)]
    assert losses[0] == pytest.approx(math.log(256), rel=0.05)
    assert losses[-1] < 3.5
    assert trainer.done


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, stop: int) -> None:
    whole, first, second = make_trainer(), make_trainer(), make_trainer()
    losses = [whole.advance() for _ in range(7)]
    resumed = [first.advance() for _ in range(stop)]
    first.save(tmp_path / "a.pt")
    with torch.no_grad():
        for parameter in second.model.parameters():
            parameter.add_(1)  # Nothing of the fresh model may remain.
    second.restore(tmp_path / "a.pt")
    resumed += [second.advance() for _ in range(7 - stop)]
    assert resumed == losses
    assert without_times(second.curve) == without_times(whole.curve)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name
    assert [row["step"] for row in whole.curve] == [2, 3, 4, 6, 7]
    assert [row["step"] for row in whole.curve if row["validation_loss"]] == [3, 6, 7]


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    make_trainer().save(path)
    with pytest.raises(CheckpointError, match=r"another plan \(steps: 7, now 9\); --no-resume"):
        make_trainer(steps=9).restore(path)
    with pytest.raises(CheckpointError, match="made with another text"):
        make_trainer(TEXT[1:]).restore(path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize("damage", ["cut", "other", "foreign"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.pt"
    make_trainer().save(path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:1000])
    elif damage == "other":
        path.write_text("hello")
    else:
        torch.save({"format": 99}, path)
    with pytest.raises(CheckpointError, match=r"a\.pt.*--no-resume starts anew"):
        make_trainer().restore(path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_training_keeps_its_last_step(tmp_path: Path, number: int) -> None:
    trainer, handler = make_trainer(), signal.getsignal(number)
    advance = trainer.advance

    def interrupted() -> float:
        if trainer.step == 3:
            signal.raise_signal(number)
        return float(advance())

    trainer.advance = interrupted
    assert not example.keep_training(trainer, tmp_path / "a.pt")
    assert signal.getsignal(number) == handler
    resumed = make_trainer()
    resumed.restore(tmp_path / "a.pt")
    assert resumed.step == 4
    assert example.keep_training(resumed, tmp_path / "a.pt")


def test_timing_changes_neither_the_model_nor_the_dice() -> None:
    trainer = make_trainer()
    before = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    dice = torch.get_rng_state()
    assert example.steps_in(1.0, trainer.model, trainer.plan, TEXT) >= 1
    assert torch.equal(dice, torch.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in trainer.model.state_dict().items())


@pytest.mark.parametrize("given", [["--prompt", ""], ["--steps", "0"], ["--minutes", "-1"]])
def test_options_that_cannot_work_are_refused_before_training(given: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        example.parse_arguments(given)


def start(folder: Path, text: Path) -> subprocess.Popen[str]:
    sizes = {"steps": 16, "width": 32, "streams": 2, "segment": 8, "length": 24, "threads": 1}
    options = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    return subprocess.Popen(
        [sys.executable, "xlstm_text.py", "--text", text, "--out", folder, *options],
        cwd=EXAMPLES,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str], interrupt_after: str | None = None) -> tuple[str, int]:
    """What a process says, and its status; SIGINT goes out at the first line that begins so."""
    said = []
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if interrupt_after is not None and line.startswith(interrupt_after):
                process.send_signal(signal.SIGINT)
                interrupt_after = None
        status = process.wait(timeout=300)
    return "".join(said), status


def rows_of(folder: Path) -> list[dict[str, Any]]:
    with (folder / "curve.csv").open() as file:
        return without_times(list(csv.DictReader(file)))


@pytest.mark.full
def test_the_example_from_text_to_text_and_interrupted(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(TEXT)
    whole, parts = tmp_path / "whole", tmp_path / "parts"

    out, status = finish(start(whole, text))
    assert status == 0, out
    assert "the same 64 bytes" in out
    assert {p.name for p in whole.iterdir()} >= {"training.pt", "model", "onnx", "curve.csv"}
    rows = rows_of(whole)
    assert rows[-1]["step"] == "16"
    assert float(rows[-1]["validation_loss"]) < float(rows[1]["validation_loss"])

    out, status = finish(start(parts, text), interrupt_after="step ")
    assert status == 130, out
    assert "the same command goes on from there" in out
    assert not (parts / "onnx").exists()

    out, status = finish(start(parts, text))
    assert status == 0, out
    assert "going on from there" in out
    assert rows_of(parts) == rows
    assert (parts / "model" / "model.safetensors").read_bytes() == (
        whole / "model" / "model.safetensors"
    ).read_bytes()
