"""A training that is killed at random points ends as if nothing had happened; broken files."""

from __future__ import annotations

import random
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tests.core.training_cases import cases, noisy_training
from tests.core.training_processes import start, train, train_known

from seqmix.errors import CheckpointError, ConfigError
from seqmix.training.trainer import Trainer

pytest.importorskip("lightning_fabric")


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with cases():
        yield


def kill_while_it_trains(training: object, out: Path, wait: float) -> bool:
    """Start a training, kill it so many seconds after its first sign of life; False if it ended."""
    metrics = out / "metrics.csv"
    before = metrics.stat().st_mtime_ns if metrics.exists() else 0
    process = start(train_known, training, out)
    deadline = time.monotonic() + 60
    while process.is_alive() and time.monotonic() < deadline:
        if metrics.exists() and metrics.stat().st_mtime_ns != before:
            break
        time.sleep(0.002)
    time.sleep(wait)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("kills", "steps"), [(2, 40), pytest.param(20, 1600, marks=pytest.mark.full)]
)
def test_a_killed_training_ends_with_the_same_bytes(tmp_path: Path, kills: int, steps: int) -> None:
    # Saves at every step, so that many a kill falls into the writing of a checkpoint.
    training = noisy_training(steps=steps, save_every=1, log_every=1, accumulate=2)
    began = time.monotonic()
    train(training, tmp_path / "whole")
    seconds = time.monotonic() - began
    seed = random.randrange(2**32)
    moments = random.Random(seed)
    killed = 0
    for _ in range(kills):
        killed += kill_while_it_trains(
            training, tmp_path / "cut", moments.uniform(0, seconds / (kills + 1))
        )
    assert killed == kills, f"seed {seed}: some runs ended by themselves"
    assert not (tmp_path / "cut" / "weights.pt").exists()
    train(training, tmp_path / "cut")
    whole, cut = (torch.load(tmp_path / name / "weights.pt") for name in ("whole", "cut"))
    assert all(torch.equal(tensor, cut[name]) for name, tensor in whole.items()), f"seed {seed}"
    assert not list((tmp_path / "cut").glob(".*.part"))
    figures = [(tmp_path / name / "metrics.csv").read_bytes() for name in ("whole", "cut")]
    assert figures[0] == figures[1], f"seed {seed}"


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file can grow beyond a size, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [1000, 20000])
def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path, size: int) -> None:
    training = noisy_training(steps=6, save_every=2)
    whole = Trainer(training, tmp_path / "whole")
    whole.run()
    trainer = Trainer(training, tmp_path / "cut")
    for _ in range(3):
        trainer.advance()
    kept = (tmp_path / "cut" / "training.ckpt").read_bytes()
    with full_disk(size), pytest.raises(CheckpointError, match=r"cannot be written: .*make room"):
        trainer.save()
    trainer.close()
    assert (tmp_path / "cut" / "training.ckpt").read_bytes() == kept
    assert not list((tmp_path / "cut").glob(".*.part"))
    again = Trainer(training, tmp_path / "cut")
    assert again.standing.step == 2
    again.run()
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_checkpoint_says_what_to_do(tmp_path: Path, share: float) -> None:
    training = noisy_training(steps=2)
    Trainer(training, tmp_path).run()
    path = tmp_path / "training.ckpt"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=r"damaged or incomplete.*restore.*--no-resume"):
        Trainer(training, tmp_path)
    assert Trainer(training, tmp_path, resume=False).run().step == 2


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    training = noisy_training(steps=2)
    Trainer(training, tmp_path).run()
    path = tmp_path / "training.ckpt"
    torch.save(torch.load(path, weights_only=True) | {"format": 1}, path)
    with pytest.raises(CheckpointError, match=r"is of format 1, expected 2; start anew"):
        Trainer(training, tmp_path)


def test_two_trainings_in_one_folder_are_refused(tmp_path: Path) -> None:
    training = noisy_training(steps=4)
    first, second = Trainer(training, tmp_path), Trainer(training, tmp_path)
    left = tmp_path / ".training.ckpt.77.part"
    left.write_bytes(b"what a killed process was writing")
    first.advance()
    assert not left.exists()
    with pytest.raises(ConfigError, match=r"process \d+ on .* is training into this folder"):
        second.run()
    figures = (tmp_path / "metrics.csv").read_bytes()
    first.run()
    assert (tmp_path / "metrics.csv").read_bytes().startswith(figures)
    second.run()
    assert torch.equal(first.model.embed.weight, second.model.embed.weight)


def test_a_process_that_is_killed_gives_the_folder_free(tmp_path: Path) -> None:
    training = noisy_training(steps=100_000)
    process = start(train_known, training, tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "metrics.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(ConfigError, match=f"process {process.pid} on"):
        Trainer(training, tmp_path).run()
    process.kill()
    process.join()
    Trainer(noisy_training(steps=2), tmp_path, resume=False).run()
