"""Several processes, over gloo: they find what one finds, share out weights, and end together."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core.training_cases import cases, noisy_training
from tests.core.training_processes import FAILED, SECONDS, together, train

import seqmix
from seqmix.cli import invoke
from seqmix.errors import ConfigError
from seqmix.training.fabric import launch_fabric

pytest.importorskip("lightning_fabric")


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with cases():
        yield


FIGURES = ("loss", "auxiliary_loss", "gradient_norm", "held_out_loss", "held_out_accuracy")


def assert_alike(first: Path, second: Path, tolerance: float) -> None:
    """The same figures at the same steps, and the same weights, but for rounding."""
    texts = [(out / "metrics.csv").read_text() for out in (first, second)]
    rows = [list(csv.DictReader(text.splitlines())) for text in texts]
    for one, other in zip(*rows, strict=True):
        assert (one["step"], one["tokens"]) == (other["step"], other["tokens"])
        for name in FIGURES:
            assert (one[name] == "") == (other[name] == "")
            if one[name]:
                assert float(one[name]) == pytest.approx(float(other[name]), abs=tolerance), name
    weights = [torch.load(out / "weights.pt") for out in (first, second)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=0, atol=tolerance)


def assert_same_files(first: Path, second: Path) -> None:
    assert (first / "metrics.csv").read_bytes() == (second / "metrics.csv").read_bytes()
    weights = [torch.load(out / "weights.pt") for out in (first, second)]
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name


def shares(out: Path) -> list[list[int]]:
    return [json.loads((out / f"share-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.full)])
def test_two_processes_find_what_one_finds(tmp_path: Path, strategy: str) -> None:
    # Without dropping, whose random numbers differ; 3 held-out batches for 2 processes.
    training = noisy_training(drop=0.0, accumulate=2, clip=0.5, save_every=5)
    train(training, tmp_path / "one")
    assert together(training, tmp_path / "two", strategy, 2) == 0
    assert_alike(tmp_path / "one", tmp_path / "two", 1e-5)
    for held, count in shares(tmp_path / "two"):
        assert held == count if strategy == "ddp" else 0.4 < held / count < 0.6
    left = {path.name for path in (tmp_path / "two").iterdir()}
    written = {".training.lock", "metrics.csv", "training.ckpt", "weights.pt"}
    folders = {"training.shards-a"} if strategy == "fsdp" else set()
    assert left == written | folders | {"share-0.json", "share-1.json"}


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    ("options", "tolerance"),
    [({"precision": "bf16-mixed"}, 3e-2), ({"dtype": "f64"}, 1e-12), ({"dtype": "bf16"}, 6e-2)],
)
def test_precision_is_that_of_one_process(
    tmp_path: Path, strategy: str, options: dict[str, Any], tolerance: float
) -> None:
    training = noisy_training(drop=0.0, rate=0.01, **options)
    train(training, tmp_path / "one")
    assert together(training, tmp_path / "two", strategy, 2) == 0
    assert_alike(tmp_path / "one", tmp_path / "two", tolerance)
    dtypes = {tensor.dtype for tensor in torch.load(tmp_path / "two" / "weights.pt").values()}
    expected = {"f64": torch.float64, "bf16": torch.bfloat16}
    assert dtypes == {expected.get(options.get("dtype", ""), torch.float32)}


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_interrupted_training_of_two_ends_with_the_same_bytes(
    tmp_path: Path, strategy: str
) -> None:
    training = noisy_training(save_every=3)  # With dropping: every process has its own numbers.
    assert together(training, tmp_path / "whole", strategy, 2) == 0
    assert together(training, tmp_path / "cut", strategy, 2, stop=8) != 0
    assert not (tmp_path / "cut" / "weights.pt").exists()
    assert together(training, tmp_path / "cut", strategy, 2) == 0
    assert_same_files(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "after"),
    [(("fsdp", 2), (None, 1)), ((None, 1), ("fsdp", 2)), (("fsdp", 3), ("ddp", 2))],
)
def test_another_number_of_processes_goes_on(tmp_path: Path, before: Any, after: Any) -> None:
    training = noisy_training(drop=0.0, save_every=5, batch=12)
    train(training, tmp_path / "one")

    def part(strategy: str | None, world: int, **options: Any) -> int:
        return together(training, tmp_path / "moved", strategy, world, **options)

    assert part(*before, stop=7) != 0
    assert part(*after) == 0
    assert_alike(tmp_path / "one", tmp_path / "moved", 1e-5)
    folders = [p for p in (tmp_path / "moved").iterdir() if p.is_dir()]
    assert len(folders) == (after[0] == "fsdp")


@pytest.mark.full
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_one_process_ends_all(tmp_path: Path, failing: int) -> None:
    began = time.monotonic()
    status = together(noisy_training(), tmp_path, "ddp", 2, stop=3, failing=failing)
    assert status >= FAILED or status == 1
    assert time.monotonic() - began < SECONDS
    assert not (tmp_path / "weights.pt").exists()


PLAN = """
[model]
vocab_size = 256
width = 16
context_length = 32
[[model.blocks]]
repeat = 2
steps = [{{ kind = "base_conv", taps = 4 }}, {{ kind = "swiglu", hidden = 32 }}]
[task]
kind = "text"
files = ["{file}"]
cache = "{cache}"
length = 16
[training]
steps = 20
batch = 8
rate = 0.02
log_every = 5
test_every = 10
"""


def torchrun(config: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--standalone", "-m", "seqmix", "train", str(config), "-o", str(out), *more]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_command_under_torchrun(tmp_path: Path, strategy: str) -> None:
    file, config = tmp_path / "a.txt", tmp_path / "plan.toml"
    file.write_text("Wer reitet so spät durch Nacht und Wind?\n" * 60, encoding="utf-8")
    config.write_text(PLAN.format(file=file, cache=tmp_path / "cache"), encoding="utf-8")
    done = torchrun(config, tmp_path / "two", "--strategy", strategy)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 20: held out loss") == 1
    assert done.stderr.count("parameters, ") == 1
    assert invoke(["train", str(config), "-o", str(tmp_path / "one")]) == 0
    reports = [json.loads((tmp_path / n / "report.json").read_text()) for n in ("one", "two")]
    assert reports[0]["held_out_loss"] == pytest.approx(reports[1]["held_out_loss"], abs=1e-5)
    assert reports[0]["held_out_accuracy"] == reports[1]["held_out_accuracy"]
    models = [
        seqmix.Model.from_checkpoint(seqmix.resolve(tmp_path / n / "model")) for n in ("one", "two")
    ]
    for one, other in zip(*(m.state_dict().values() for m in models), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.full
def test_the_command_under_torchrun_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text("[training]\nsteps = 0\n")
    done = torchrun(tmp_path / "plan.toml", tmp_path / "out")
    assert done.returncode != 0
    assert "error: " in done.stderr
    assert not (tmp_path / "out").exists()


def test_strategies_need_processes() -> None:
    with pytest.raises(ConfigError, match="for several processes, and there is one; start more: "):
        launch_fabric("model", "fsdp")
    with pytest.raises(ConfigError, match="no strategy 'fdsp'; did you mean 'fsdp'"):
        launch_fabric("model", "fdsp")
