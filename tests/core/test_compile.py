"""Compiling through the whole house: parity, reports, the cache, saving, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.core import tiny
from torch import Tensor

import seqmix
from seqmix import cache, hooks, registry
from seqmix.backend import Availability, Backend, Executable, Program, Report
from seqmix.backends.reference import ReferenceBackend, ReferenceExecutable
from seqmix.compile import compile, load, program_of
from seqmix.config import ModelConfig
from seqmix.errors import BackendError, ConfigError, PluginError
from seqmix.generate import generate
from seqmix.interface import read_manifest
from seqmix.model import Model, flatten_states, initial_states
from seqmix.weights import Weights
from seqmix_ir.graph import Module, Op

TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model()


@pytest.fixture(scope="module")
def program(model: Model) -> Program:
    return program_of(model)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQMIX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SEQMIX_NO_CACHE", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def counting() -> Any:
    Counting.compiled = 0
    with registry.register_local("backends", "counting", Counting):
        yield Counting


class Counting(ReferenceBackend):
    """The reference backend, but worth caching; counts its compilations."""

    name: ClassVar[str] = "counting"
    cached: ClassVar[bool] = True
    compiled: ClassVar[int] = 0

    def compile(self, program: Program, target: str, options: Mapping[str, Any]) -> Executable:
        Counting.compiled += 1
        return ReferenceExecutable(program, Report(self.name, target), False)


class Absent(ReferenceBackend):
    name: ClassVar[str] = "absent"
    automatic: ClassVar[bool] = True

    def probe(self) -> Availability:
        return Availability((), "the moon is not full")


class NoAttention(ReferenceBackend):
    """Cannot run a gather natively, and there is no way around it."""

    name: ClassVar[str] = "aaa"
    automatic: ClassVar[bool] = True

    def supports(self, op: Op, target: str) -> str | None:
        return "no indexing here" if op.name == "gather" else None


class NoSilu(ReferenceBackend):
    name: ClassVar[str] = "no_silu"

    def supports(self, op: Op, target: str) -> str | None:
        return "too smooth" if op.name in ("silu", "attention") else None


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("where", ["left", "right", "middle"])
def test_parity_with_torch(model: Model, program: Program, backend: str, where: str) -> None:
    executable = compile(program, backend)
    states = executable.initial_state(1)
    expected_states = None
    row, _ = tiny.tokens(1, 11)
    start = 0
    for length in (1, 3, 7):
        piece = row[0, start : start + length]
        ids, positions = tiny.padded(piece, length + 2, where)
        positions = torch.where(positions >= 0, positions + start, positions)
        expected, expected_states = model(ids, positions, expected_states)
        logits, states = executable(ids, positions, states)
        keep = positions >= 0
        torch.testing.assert_close(logits[keep], expected[keep], atol=TOLERANCE, rtol=TOLERANCE)
        for name, tensor in flatten_states(model, expected_states).items():
            torch.testing.assert_close(states[name], tensor, atol=TOLERANCE, rtol=TOLERANCE)
        start += length


def test_the_judge_is_exact(program: Program) -> None:
    judge = compile(program, "reference", options={"judge": True})
    exact = tiny.model().double()
    ids, positions = tiny.tokens(2, 5)
    logits, states = judge(ids, positions)
    expected, _ = exact(ids, positions)
    assert logits.dtype == torch.float64
    torch.testing.assert_close(logits, expected, atol=1e-11, rtol=1e-11)
    again, _ = judge(ids[:, :1], positions[:, -1:] + 1, states)
    assert again.dtype == torch.float64


def test_generation_on_an_executable(model: Model, program: Program) -> None:
    executable = compile(program, "reference")
    prompt = [[3, 1, 4], [1]]
    expected = list(generate(model, prompt, max_new_tokens=4))
    assert list(generate(executable, prompt, max_new_tokens=4)) == expected


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_save_and_load(program: Program, backend: str, tmp_path: Path) -> None:
    executable = compile(program, backend)
    executable.save(tmp_path / "deep" / "saved")
    again = load(tmp_path / "deep" / "saved")
    assert again.config == executable.config
    assert again.report == executable.report
    ids, positions = tiny.tokens(2, 5)
    assert torch.equal(again(ids, positions)[0], executable(ids, positions)[0])


def test_torch_backend_rebuilds_the_model_from_weights(model: Model, program: Program) -> None:
    bare = Program(program.module, program.weights, program.config)
    ids, positions = tiny.tokens(1, 4)
    assert torch.equal(compile(bare, "torch")(ids, positions)[0], model(ids, positions)[0])


def test_a_checkpoint(model: Model) -> None:
    @dataclass
    class Given:
        config: ModelConfig
        weights: Weights
        source: str = "given"

    given: Any = Given(model.config, Weights.of(model))
    ids, positions = tiny.tokens(1, 4)
    assert torch.equal(compile(given, "torch")(ids, positions)[0], model(ids, positions)[0])


def test_the_public_name_is_the_function() -> None:
    assert callable(seqmix.compile)
    assert seqmix.compile is compile
    assert seqmix.generate is generate


def test_report_and_stages(program: Program) -> None:
    seen: list[tuple[str, int]] = []

    def watch(stage: str, module: Module) -> None:
        seen.append((stage, len(module.graph("forward").block.ops)))

    with registry.register_local("backends", "no_silu", NoSilu):
        executable = compile(program, "no_silu", callback=watch)
    report = executable.report
    assert seen[0][0] == "captured"
    assert seen[-1][0] == "legalized"
    assert report.decomposed["silu"].endswith("too smooth")
    assert "attention" in report.decomposed
    assert "silu" not in report.native
    assert report.native["sigmoid"] == 2
    assert set(report.seconds) >= {"capture", "lower", "compile"}
    ids, positions = tiny.tokens(2, 5)
    expected, _ = tiny.model()(ids, positions)
    logits, _ = executable(ids, positions)
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_the_cache_is_used(program: Program, counting: Any) -> None:
    first = compile(program, "counting")
    second = compile(program, "counting")
    assert counting.compiled == 1
    assert "read from the compile cache" in second.report.notes
    assert "read from the compile cache" not in first.report.notes
    assert second.report.native == first.report.native
    ids, positions = tiny.tokens(2, 5)
    assert torch.equal(first(ids, positions)[0], second(ids, positions)[0])
    compile(program, "counting", cache=False)
    assert counting.compiled == 2


def test_the_cache_tells_programs_apart(
    program: Program, counting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(**changes: Any) -> int:
        before = counting.compiled
        compile(changes.pop("program", program), "counting", **changes)
        return int(counting.compiled - before)

    assert made() == 1
    assert made(target="elsewhere") == 1
    assert made(options={"level": 1}) == 1
    assert made(options={"level": 2}) == 1
    assert made(options={"level": 1}) == 0
    assert made(options={"level": object()}) == 1
    other = tiny.model(seed=5)
    same_graph = Program(program.module, Weights.of(other), program.config)
    assert made(program=same_graph) == 1
    monkeypatch.setattr(counting, "version", "2")
    assert made() == 1
    assert made() == 0
    monkeypatch.setenv("SEQMIX_NO_CACHE", "1")
    assert made() == 1


@pytest.mark.parametrize("damage", ["weights", "manifest", "load"])
def test_a_damaged_entry_is_rebuilt(
    program: Program, counting: Any, home: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile(program, "counting")
    (entry,) = (home / "compiled").iterdir()
    if damage == "load":
        monkeypatch.setattr(counting, "load", lambda self, folder: 1 / 0)
    else:
        name = "model.safetensors" if damage == "weights" else "seqmix.json"
        content = (entry / name).read_bytes()
        (entry / name).write_bytes(content[:-2] + b"??")
    executable = compile(program, "counting")
    assert counting.compiled == 2
    monkeypatch.undo()
    ids, positions = tiny.tokens(1, 3)
    expected, _ = tiny.model()(ids, positions)
    torch.testing.assert_close(executable(ids, positions)[0], expected, atol=1e-5, rtol=1e-5)


def test_the_cache_can_be_cleared(program: Program, counting: Any) -> None:
    compile(program, "counting")
    cache.clear()
    compile(program, "counting")
    assert counting.compiled == 2


def test_auto_says_what_and_why(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    others = set(registry.names("backends")) - {"torch", "reference"}
    monkeypatch.setenv("SEQMIX_BLOCK_PLUGINS", ",".join(others))
    with (
        registry.register_local("backends", "absent", Absent),
        registry.register_local("backends", "aaa", NoAttention),
    ):
        executable = compile(program)
    notes = executable.report.notes
    assert executable.report.backend == "torch"
    assert notes[0].startswith("auto: 'torch' on ")
    assert "not 'absent': the moon is not full" in notes
    assert any(n.startswith("not 'aaa': cannot run 'gather' at ") for n in notes)


def test_auto_asks_the_hooks(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "choose_backend", lambda module, names: ("torch", "some plugin"))
    report = compile(program).report
    assert report.backend == "torch"
    assert report.notes[0] == "auto: 'torch', chosen by some plugin"


def test_the_compiled_hook_sees_every_executable(
    program: Program, counting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Executable] = []
    monkeypatch.setattr(hooks, "compiled", lambda module, executable: seen.append(executable))
    made = [compile(program, "counting"), compile(program, "counting")]
    assert seen == made


def test_refusals(program: Program, tmp_path: Path) -> None:
    with (
        registry.register_local("backends", "absent", Absent),
        pytest.raises(BackendError, match="'absent' is not available here: the moon"),
    ):
        compile(program, "absent")
    with pytest.raises(PluginError, match="did you mean 'reference'"):
        compile(program, "referense")
    with pytest.raises(BackendError, match="no option 'juge'; did you mean 'judge'"):
        compile(program, "reference", options={"juge": True})
    with pytest.raises(BackendError, match="option 'judge' should be bool, found 'yes'"):
        compile(program, "reference", options={"judge": "yes"})
    with pytest.raises(BackendError, match="no target 'gpu'; known: cpu"):
        compile(program, "reference", target="gpu")
    with pytest.raises(BackendError, match="'gpu' is no torch device"):
        compile(program, "torch", target="gpu")
    with pytest.raises(ConfigError, match="a model, a checkpoint or a program"):
        compile(3)
    with pytest.raises(BackendError, match=r"has no seqmix\.json"):
        load(tmp_path)
    (tmp_path / "seqmix.json").write_text('{"format": 99}', encoding="utf-8")
    with pytest.raises(BackendError, match="format 99 is not 1"):
        load(tmp_path)
    (tmp_path / "seqmix.json").write_text("{", encoding="utf-8")
    with pytest.raises(BackendError, match="is not valid JSON"):
        read_manifest(tmp_path)


def arguments(model: Model) -> dict[str, Tensor]:
    ids, positions = tiny.tokens(2, 3)
    return {"input_ids": ids, "positions": positions, **initial_states(model, 2)}


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_inputs_are_checked_at_the_door(model: Model, program: Program, backend: str) -> None:
    executable = compile(program, backend)
    good = arguments(model)

    def refused(message: str, **changes: Tensor | None) -> None:
        inputs = {k: v for k, v in {**good, **changes}.items() if v is not None}
        with pytest.raises(BackendError, match=message):
            executable.run("forward", inputs)

    refused(r"input 'positions' i64\[B, S\] is missing", positions=None)
    refused("'position' is no input; did you mean 'positions'", position=good["positions"])
    refused(r"'input_ids' should be i64\[B, S\], found f32\[2, 3\]",
            input_ids=good["input_ids"].float())  # fmt: skip
    refused(r"found torch\.complex64\[2, 3\]", input_ids=good["input_ids"].to(torch.complex64))
    refused(r"found i64\[3\]", input_ids=good["input_ids"][0])
    refused("S is 3 by axis 1 of 'input_ids', but 2 by axis 1 of 'positions'",
            positions=good["positions"][:, :2])  # fmt: skip
    refused("S should be at least 1, found 0",
            input_ids=good["input_ids"][:, :0], positions=good["positions"][:, :0])  # fmt: skip
    window = good["state.1.key"]
    refused(r"axis 2 of 'state\.1\.key' should be 3, found 2", **{"state.1.key": window[:, :, 1:]})
    assert set(executable.run("forward", good)) == {"logits", *initial_states(model, 2)}


def test_every_problem_is_listed_at_once(model: Model, program: Program) -> None:
    inputs = arguments(model)
    del inputs["positions"], inputs["state.0.key"]
    inputs["more"] = inputs["input_ids"]
    with pytest.raises(BackendError) as error:
        compile(program, "torch").run("forward", inputs)
    for part in ("'positions'", "'state.0.key'", "'more' is no input"):
        assert part in str(error.value)
    with pytest.raises(seqmix.IRError, match=r"no graph 'forwards'.*'forward'"):
        compile(program, "torch").run("forwards", inputs)


def test_what_is_no_tensor_is_refused(program: Program) -> None:
    executable: Any = compile(program, "reference")
    ids, positions = tiny.tokens(1, 2)
    states = executable.initial_state(1)
    with pytest.raises(BackendError, match="input_ids should be a tensor, found list"):
        executable(ids.tolist(), positions)
    with pytest.raises(BackendError, match=r"states should be a mapping .* found list; .*flatten"):
        executable(ids, positions, list(states.values()))
    with pytest.raises(BackendError, match=r"'state\.0\.key' should be f.*, found ndarray"):
        executable(ids, positions, {**states, "state.0.key": states["state.0.key"].numpy()})


def test_backends_are_backends() -> None:
    for name in ("reference", "torch"):
        backend = registry.get("backends", name)()
        assert isinstance(backend, Backend)
        assert "cpu" in backend.probe().devices


@pytest.mark.parametrize(
    "backend", ["torch", pytest.param("reference", marks=pytest.mark.full), "onnxruntime"]
)
def test_the_logits_of_the_last_token_alone(backend: str, tmp_path: Path) -> None:
    made = tiny.model()
    ids, positions = tiny.tokens(2, 7)
    wanted, _ = made(ids, positions)
    compiled = compile(made, backend, logits_to_keep=1, cache=False)
    compiled.save(tmp_path)
    for executable in (compiled, load(tmp_path)):
        logits, states = executable(ids, positions)
        torch.testing.assert_close(logits, wanted[:, -1:], rtol=1e-4, atol=1e-4)
        logits, _ = executable(ids[:, :1], positions[:, -1:] + 1, states)
        assert logits.shape == (2, 1, tiny.VOCAB)
    with pytest.raises(ConfigError, match="logits_to_keep is 2, expected 0"):
        compile(made, backend, logits_to_keep=2)
