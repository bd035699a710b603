"""backend="auto": who may be taken, the trial, what is remembered of it, and what is said."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.core import tiny
from torch import Tensor

from seqmix import choose, hooks, keys, registry
from seqmix.backend import Availability, Executable, Program, Report
from seqmix.backends.reference import ReferenceBackend, ReferenceExecutable
from seqmix.cli import invoke
from seqmix.compile import compile, program_of
from seqmix.errors import BackendError
from seqmix.storage import save_model
from seqmix.testing.cases import make_case


class _Delayed(ReferenceExecutable):
    seconds: float = 0.0

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self.seconds < 0:
            raise OSError("the machine is on fire")
        time.sleep(self.seconds)
        return super().run(graph, inputs)


class Quick(ReferenceBackend):
    name: ClassVar[str] = "quick"
    automatic: ClassVar[bool] = True
    delay: ClassVar[float] = 0.0
    compiled: ClassVar[list[str]] = []

    def compile(self, program: Program, target: str, options: Mapping[str, Any]) -> Executable:
        self.compiled.append(self.name)
        executable = _Delayed(program, Report(self.name, target), False)
        executable.seconds = self.delay
        return executable


class Slow(Quick):
    name: ClassVar[str] = "slow"
    delay: ClassVar[float] = 0.05


class Burning(Quick):
    """Compiles, and fails when it runs."""

    name: ClassVar[str] = "burning"
    delay: ClassVar[float] = -1.0


class Uncompiled(Quick):
    name: ClassVar[str] = "uncompiled"

    def compile(self, program: Program, target: str, options: Mapping[str, Any]) -> Executable:
        raise BackendError("no compiler here")


class Absent(Quick):
    name: ClassVar[str] = "absent"

    def probe(self) -> Availability:
        return Availability((), "the moon is not full")


@pytest.fixture(scope="module")
def program() -> Program:
    return program_of(tiny.model([tiny.MLP]))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The backends of this file, no others, and a cache of its own."""
    for name in ("SEQMIX_BACKEND", "SEQMIX_NO_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SEQMIX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Quick, "compiled", [])
    with ExitStack() as stack:
        for backend in (Quick, Slow, Burning, Uncompiled, Absent):
            stack.enter_context(registry.register_local("backends", backend.name, backend))
        yield


def candidates(monkeypatch: pytest.MonkeyPatch, *backends: type[Quick]) -> None:
    monkeypatch.setenv("SEQMIX_AUTO_BACKENDS", ", ".join(b.name for b in backends))


def test_the_fastest_is_taken_and_the_others_are_explained(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates(monkeypatch, Slow, Quick, Burning, Uncompiled, Absent)
    report = compile(program).report
    assert report.backend == "quick"
    first, *others = report.notes
    assert first == "auto: 'quick' on cpu, the fastest of 2 in a trial"
    assert others[0].startswith("'quick': ")
    assert "1.00 times the fastest" in others[0]
    assert others[1].startswith("'slow': ")
    assert set(others[2:]) == {
        "not 'burning': failed in the trial: OSError: the machine is on fire",
        "not 'uncompiled': failed in the trial: no compiler here",
        "not 'absent': the moon is not full",
    }
    assert sorted(Quick.compiled) == ["burning", "quick", "slow"]


def test_a_trial_is_remembered(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates(monkeypatch, Slow, Quick)
    first = compile(program).report.notes
    Quick.compiled.clear()
    again = compile(program).report
    assert Quick.compiled in (["quick"], [])
    assert again.backend == "quick"
    assert again.notes[:3] == first[:3]
    assert "the trial was held before; its result is kept in the cache" in again.notes
    Quick.compiled.clear()
    compile(program, cache=False)
    assert sorted(Quick.compiled) == ["quick", "slow"]


@pytest.mark.full
def test_what_a_trial_depends_on(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    backends = {"quick": Quick()}

    def key(module: Any = program.module, **asked: Any) -> str:
        return keys.trial_key(module, backends, asked)

    known = key()
    assert key() == known
    assert key(target="cuda") != known
    assert key(program_of(tiny.model([tiny.SWIGLU])).module) != known
    monkeypatch.setattr(Quick, "version", "2")
    assert key() != known
    monkeypatch.undo()
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    assert key() != known


def test_slow_compilers_end_the_trial(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates(monkeypatch, Quick, Slow)
    monkeypatch.setattr(choose, "COMPILE_SECONDS", 0.0)
    report = compile(program).report
    assert Quick.compiled == ["quick"]
    assert any(n.startswith("not 'slow': compiling the others took 0 s") for n in report.notes)


def test_none_is_left(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates(monkeypatch, Burning, Uncompiled)
    with pytest.raises(BackendError, match=r"can run this model here: .*no compiler here; .*fire"):
        compile(program)


def test_a_plugin_decides_before_the_trial(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates(monkeypatch, Slow, Quick)
    monkeypatch.setattr(hooks, "choose_backend", lambda module, names: ("slow", "a plugin"))
    assert compile(program).report.notes[0] == "auto: 'slow', chosen by a plugin"
    assert Quick.compiled == ["slow"]


def test_the_environment_decides_before_all(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "choose_backend", lambda module, names: ("quick", "a plugin"))
    monkeypatch.setenv("SEQMIX_BACKEND", "slow")
    assert compile(program).report.notes == ["auto: 'slow', asked for by SEQMIX_BACKEND"]
    assert compile(program, "quick").report.backend == "quick"
    monkeypatch.setenv("SEQMIX_BACKEND", "absent")
    with pytest.raises(BackendError, match=r"which SEQMIX_BACKEND asks for, is not .*: the moon"):
        compile(program)


def test_one_candidate_needs_no_trial(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates(monkeypatch, Slow)
    assert compile(program).report.notes[0] == "auto: 'slow' on cpu; could be slow"


def test_what_is_no_model_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates(monkeypatch, Slow, Quick)
    example = registry.op_table().lookup("relu").examples(np.random.default_rng(0))[0]
    notes = compile(make_case(example, "f32").program()).report.notes
    assert notes[0] == "auto: 'quick' on cpu; could be slow, quick"


@pytest.mark.full
def test_explain_says_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    candidates(monkeypatch, Slow, Quick)
    save_model(tiny.model([tiny.MLP]), tmp_path / "model")
    assert invoke(["explain", str(tmp_path / "model"), "-b", "auto", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["backend"] == "quick"
    assert said["notes"][0].startswith("auto: 'quick' on cpu, the fastest of 2")
    monkeypatch.setenv("SEQMIX_BACKEND", "slow")
    assert invoke(["explain", str(tmp_path / "model"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["backend"] == "slow"


def test_who_has_a_say_in_a_compilation() -> None:
    """The package of an op of a plugin, which may be taken apart, is part of the key."""
    op = registry.op_table().lookup("xlstm.mlstm")
    module = make_case(op.examples(np.random.default_rng(0))[0], "f32").module
    assert {"seqmix", "seqmix_ir", "seqmix_xlstm"} <= set(keys._packages(module, Quick()))
