"""One executable, eight threads, each with inputs and states of its own: as if it were alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.core import tiny
from tests.core.in_threads import as_if_alone, together
from torch import Tensor

from seqmix.compile import compile
from seqmix.errors import BackendError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQMIX_CACHE_DIR", str(tmp_path / "cache"))


KINDS = [tiny.ATTENTION, {"kind": "mlstm", "heads": 1}, tiny.SWIGLU]


@pytest.mark.parametrize("backend", ["torch", pytest.param("reference", marks=pytest.mark.full)])
def test_backends_of_the_core(backend: str) -> None:
    as_if_alone(backend, KINDS, tokens=3, rounds=2)


def test_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    as_if_alone("onnxruntime", KINDS, tokens=4, rounds=5)


@pytest.mark.full
def test_tvm() -> None:
    pytest.importorskip("tvm")
    as_if_alone("tvm", KINDS, tokens=4, rounds=5)


def test_a_step_that_is_opened_late(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from seqmix.compile import load

    compile(tiny.model([tiny.ATTENTION]), "onnxruntime", cache=False).save(tmp_path / "folder")
    executable = load(tmp_path / "folder")
    ids, positions = tiny.tokens(1, 4)
    _, states = executable(ids[:, :3], positions[:, :3])
    other = compile(tiny.model([tiny.ATTENTION], seed=5), "onnxruntime", cache=False)
    other.save(tmp_path / "folder")
    with pytest.raises(BackendError, match=r"was replaced since it was loaded.*load it again"):
        executable(ids[:, 3:], positions[:, 3:], states)
    again = load(tmp_path / "folder")
    again.save(tmp_path / "folder")
    _, states = again(ids[:, :3], positions[:, :3])
    found, _ = again(ids[:, 3:], positions[:, 3:], states)
    _, states = other(ids[:, :3], positions[:, :3])
    assert torch.equal(found, other(ids[:, 3:], positions[:, 3:], states)[0])


def test_compiling_in_threads() -> None:
    models = [tiny.model([tiny.ATTENTION], seed=seed) for seed in range(4)]
    ids, positions = tiny.tokens(1, 5)

    def work(number: int) -> Tensor:
        return compile(models[number], "reference")(ids, positions)[0]

    for model, found in zip(models, together(work, 4), strict=True):
        torch.testing.assert_close(found, model(ids, positions)[0], atol=1e-4, rtol=1e-4)
