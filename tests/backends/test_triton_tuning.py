"""Which configuration of a kernel is kept, with a clock that the tests set."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.backends.triton_kernels import check

from seqmix.ops import causal_conv1d, linear_attention
from seqmix_triton import kernel as kernel_module
from seqmix_triton.config import Config
from seqmix_triton.kernels.norm import NORM_FORWARD
from seqmix_triton.library import all_kernels
from seqmix_triton.ops.causal_conv1d import causal_conv1d_backward, causal_conv1d_forward
from seqmix_triton.ops.linear_attention import (
    linear_attention_backward,
    linear_attention_forward,
)
from seqmix_triton.ops.norm import rms_norm_forward
from seqmix_triton.tuning import fastest, kind_of, tuning

SPACE = [Config({"BLOCK": size}, 4, 1) for size in (16, 32, 64)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQMIX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SEQMIX_NO_CACHE", raising=False)


class Clock:
    """Milliseconds by tile size; remembers what ran."""

    def __init__(self, times: dict[int, float]) -> None:
        self.times = times
        self.ran: list[int] = []

    def run(self, config: Config) -> None:
        self.ran.append(config.tiles["BLOCK"])

    def __call__(self, work: Callable[[], None]) -> float:
        work()
        return self.times[self.ran[-1]]


def test_the_fastest_is_found_once_and_kept() -> None:
    clock = Clock({16: 3.0, 32: 1.0, 64: 2.0})
    assert fastest("kind", SPACE, clock.run, clock) == SPACE[1]
    assert clock.ran == [16, 32, 64]
    assert fastest("kind", SPACE, clock.run, clock) == SPACE[1]
    assert len(clock.ran) == 3
    fastest("another kind", SPACE, clock.run, clock)
    assert len(clock.ran) == 6


def test_what_does_not_fit_the_device_is_passed_over() -> None:
    from triton.runtime.errors import OutOfResources

    clock = Clock({16: 3.0, 64: 2.0})

    def run(config: Config) -> None:
        clock.run(config)
        if config.tiles["BLOCK"] == 32:
            raise OutOfResources(300_000, 232_448, "shared memory")

    assert fastest("kind", SPACE, run, clock) == SPACE[2]


def test_an_error_of_the_kernel_is_not_hidden() -> None:
    def run(config: Config) -> None:
        raise ValueError("of the kernel")

    with pytest.raises(ValueError, match="of the kernel"):
        fastest("kind", SPACE, run, Clock({}))


def test_a_measurement_of_another_space_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for kept in ('{"tiles": {"BLOCK": 128}, "warps": 4, "stages": 1}', "[]", "no json"):
        monkeypatch.setattr("seqmix.cache.remember", lambda *given, kept=kept: kept)
        assert fastest("kind", SPACE, lambda config: None) == SPACE[0]


def test_kinds_differ_by_what_changes_the_speed() -> None:
    x = torch.empty(100)
    given = ("norm", "def f(): ...", "H200", torch.float32, {"D": 64}, {"x": x, "rows": 5})
    kind = kind_of(*given)
    assert json.loads(kind)["sizes"] == [7]
    assert kind == kind_of(*given[:5], {"x": torch.empty(127), "rows": 6})
    changes = {0: "other", 1: "def g(): ...", 2: "A100", 3: torch.float16, 4: {"D": 65}}
    others = {kind_of(*given[:i], change, *given[i + 1 :]) for i, change in changes.items()}
    assert len({kind, kind_of(*given[:5], {"x": torch.empty(128)}), *others}) == 7


def test_it_is_off_unless_asked_for_and_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tuning()
    monkeypatch.setenv("SEQMIX_TRITON_TUNE", "1")
    assert not tuning()
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert tuning()


def test_a_launch_runs_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_module, "tuning", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a device")
    asked: list[str] = []

    def last(kind: str, space: list[Config], run: Callable[[Config], None]) -> Config:
        asked.append(kind)
        run(space[-1])
        return space[-1]

    monkeypatch.setattr(kernel_module, "fastest", last)
    fresh = dataclasses.replace(NORM_FORWARD, _chosen={})
    monkeypatch.setattr("seqmix_triton.ops.norm.NORM_FORWARD", fresh)
    x = torch.randn(5, 24)
    for _ in range(2):
        y, _ = rms_norm_forward(x, None, eps=1e-6)
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (24,), eps=1e-6))
    assert len(asked) == 1
    assert json.loads(asked[0])["device"] == "a device"


@pytest.mark.full
def test_any_choice_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers provide memory by the default tiles: a choice must not need more of it."""
    monkeypatch.setattr(kernel_module, "tuning", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a device")
    for part in (0.5, 1.0):
        monkeypatch.setattr(
            kernel_module,
            "fastest",
            lambda kind, space, run, part=part: space[int(part * (len(space) - 1))],
        )
        for kernel in all_kernels():
            kernel._chosen.clear()
        torch.manual_seed(0)
        q, k, v = (torch.randn(1, 1, 19, size) for size in (40, 40, 24))
        given = (q, k, v, -torch.rand(1, 1, 19), torch.randn(1, 1, 40, 24))
        check(linear_attention, linear_attention_forward, linear_attention_backward, given)
        x, taps = torch.randn(1, 5, 70), torch.randn(5, 4)
        given = (x, taps, None, torch.randn(1, 5, 3))
        check(causal_conv1d, causal_conv1d_forward, causal_conv1d_backward, given, activation="")
    for kernel in all_kernels():
        kernel._chosen.clear()
