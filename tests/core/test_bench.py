"""``seqmix bench``: everybody in turn, who fails is a row, and the page says what was measured."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.core import tiny
from tests.core.bench_figures import figures
from torch import Tensor

from seqmix import registry
from seqmix.bench import Contestant, ceiling
from seqmix.bench.child import Child, ChildError
from seqmix.bench.cost import need_of, weight_bytes
from seqmix.bench.result import Row, Settings, read_result, write_result
from seqmix.bench.run import measure, specs_of
from seqmix.bench.turns import in_turn, take_turns
from seqmix.bench.worker import Worker
from seqmix.cli import invoke
from seqmix.errors import ConfigError, PluginError
from seqmix.storage import save_model


class Here:
    """A worker in this process, asked as if it had one of its own."""

    def __init__(self, threads: int) -> None:
        self.worker = Worker()
        self.alive = True

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def ask(self, command: str, **arguments: Any) -> Any:
        arguments = json.loads(json.dumps(arguments))
        try:
            return json.loads(json.dumps(getattr(self.worker, command)(**arguments)))
        except Exception as error:
            raise ChildError(f"{type(error).__name__}: {error}") from error


class Constant(Contestant):
    """A peer with the right logits to begin with, which gives up at its third token."""

    def __init__(self, checkpoint: Any, threads: int) -> None:
        self.size = checkpoint.config.vocab_size
        self.steps = 0

    def read(self, ids: Tensor) -> Tensor:
        return torch.ones(1, self.size)

    def step(self, token: Tensor) -> Tensor:
        self.steps += 1
        if self.steps > 2:
            raise RuntimeError("tired")
        return torch.ones(1, self.size)

    def rewind(self) -> None:
        return


class Untiring(Constant):
    """A peer that goes on and on."""

    def step(self, token: Tensor) -> Tensor:
        return torch.ones(1, self.size)


def no_product(*given: Any) -> Any:
    raise RuntimeError("no product here")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(ceiling, "SIDE", 32)
    monkeypatch.setattr(ceiling, "BYTES", 1 << 16)
    # Each product is captured and compiled, which takes seconds; one test is about that.
    monkeypatch.setattr(ceiling, "product_of", no_product)
    save_model(tiny.model([tiny.ATTENTION]), tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture(autouse=True)
def _settings_of_torch() -> Any:
    threads = torch.get_num_threads()
    with torch.enable_grad():
        yield
    torch.set_num_threads(threads)
    torch.set_grad_enabled(True)


def settings(model: str, backends: list[str], peers: list[str] = (), rounds: int = 2) -> Settings:
    return Settings(model, None, backends, list(peers), rounds, 2, 1, 0)


def test_turns_go_backwards_every_other_round() -> None:
    seen: list[str] = []

    def turn_of(name: str) -> Any:
        def turn() -> float:
            seen.append(name)
            return 1.0

        return turn

    turns = {name: turn_of(name) for name in "abc"}
    found = take_turns(turns, 3, warm_up=1)
    assert "".join(seen) == "abccbaabccba"
    assert found == {name: [1.0] * 3 for name in "abc"}
    clock = iter(range(100)).__next__
    assert in_turn({"a": lambda: None}, 2, lambda: float(clock())) == {"a": [1.0, 1.0]}


def test_a_backend_and_a_peer_that_tires(model: str) -> None:
    """What fails in one phase still has its figures in the other."""
    from seqmix.checkpoint import resolve

    given = settings(model, ["reference"], ["tests.core.test_bench:Constant", "no_such:x"])
    saved: list[int] = []
    result = measure(
        resolve(model).config,
        given,
        [5],
        save=lambda found: saved.append(len(found.cases)),
        start=Here,
    )
    assert saved == [1, 2]
    assert [bool(entry.reason) for entry in result.entries] == [False, False, True]
    assert "No module named 'no_such'" in result.entries[2].reason
    prefill, decode = result.cases
    assert (prefill.phase, decode.phase, decode.count) == ("prefill", "decode", 2)
    for case in result.cases:
        ours = case.rows[0]
        assert ours.difference == 0
        assert len(ours.seconds) == given.rounds
        assert ours.peak_mib > 50
        assert len(case.products) == given.rounds
        assert case.share(ours) > 0
    assert prefill.rows[1].reason == ""
    assert prefill.rows[1].difference > 0.1
    assert "tired" in decode.rows[1].reason
    assert decode.rows[1].seconds == []
    assert all("no_such" in case.rows[2].reason for case in result.cases)


def test_decoding_starts_at_the_prompt_in_every_turn(model: str) -> None:
    """The logits of a worker's turn are those of the torch model over all tokens."""
    from seqmix.checkpoint import resolve
    from seqmix.model import Model

    worker = Worker()
    worker.settle(tiny.VOCAB, "cpu")
    worker.prepare({"name": "torch", "kind": "backend", "target": "torch"}, model, None, 1)
    text = worker.case("decode", 6, 3, seed=4)
    logits = np.frombuffer(base64.b64decode(text), np.float32)
    ids = torch.randint(0, tiny.VOCAB, (1, 9), generator=torch.Generator().manual_seed(4))
    wanted, _ = Model.from_checkpoint(resolve(model)).eval()(ids, torch.arange(9).unsqueeze(0))
    np.testing.assert_allclose(logits, wanted[0, -1].numpy(), rtol=1e-4, atol=1e-4)
    assert worker.turn() > 0
    again = worker._steps(ids[:, 6:])  # Behind what the turn read: not the same.
    assert not np.allclose(again[0].numpy(), logits, atol=1e-4)
    worker._rewind()
    np.testing.assert_allclose(worker._steps(ids[:, 6:])[0].numpy(), logits, rtol=1e-5)


def test_needs_follow_the_sizes() -> None:
    config = tiny.config([tiny.ATTENTION])
    tied, untied = tiny.model([tiny.ATTENTION]), tiny.model([tiny.ATTENTION], tie_embeddings=False)
    every = 4 * sum(p.numel() for p in tied.parameters())
    assert weight_bytes(tied) == every
    # The table is read by the row where the head has a matrix of its own.
    assert weight_bytes(untied) == every + 4 * 10
    matrices = sum(p.numel() for p in tied.parameters() if p.dim() == 2)
    assert weight_bytes(tied, "int8") == every - 3 * matrices
    one, many = need_of(config, "prefill", 1, {}), need_of(config, "prefill", 9, {})
    assert one.flops == tied.flops(1, 1)
    assert many.flops == tied.flops(1, 9) - 8 * 2 * tiny.VOCAB * 10
    assert need_of(config, "decode", 9, {}).flops == tied.step_flops(1, 9)
    assert many.bytes > one.bytes > every


def test_contestants_that_cannot_be(model: str) -> None:
    for backends, text in (
        (["torch:spin"], "should read KEY=VALUE"),
        (["torch", "torch"], "named twice"),
        ([], "nobody to measure"),
    ):
        with pytest.raises(ConfigError, match=text):
            specs_of(settings(model, backends))
    with pytest.raises(PluginError, match="no peer is called 'nobody'"):
        specs_of(settings(model, ["torch"], ["nobody"]))
    with registry.register_local("peers", "mine", Constant):
        found = specs_of(settings(model, ["tvm:weights=int8:runtime=true"], ["mine"]))
    assert found[0].options == {"weights": "int8", "runtime": True}
    assert [spec.kind for spec in found] == ["backend", "peer"]


def test_lengths_beyond_the_context(model: str) -> None:
    for lengths, text in (([63], "more than the model's context"), ([], "positive numbers")):
        with pytest.raises(ConfigError, match=text):
            measure(tiny.config(), settings(model, ["torch"]), lengths, start=Here)


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    write_result(figures(), path)
    assert read_result(path) == figures()
    path.write_text('{"format": 7}')
    with pytest.raises(ConfigError, match="holds no results"):
        read_result(path)


def test_what_is_measured_is_not_measured_again(model: str) -> None:
    from seqmix.checkpoint import resolve

    config = resolve(model).config
    given = settings(model, [], ["tests.core.test_bench:Untiring"])
    before = measure(config, given, [4], ["decode"], start=Here)
    kept = list(before.cases[0].rows[0].seconds)
    after = measure(config, given, [4, 7], ["decode"], before, start=Here)
    assert [case.length for case in after.cases] == [4, 7]
    assert after.cases[0].rows[0].seconds == kept

    def nobody(threads: int) -> Here:
        raise RuntimeError("started again")

    assert measure(config, given, [7, 4], ["decode"], after, start=nobody) is after


def test_products_of_a_backend_are_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "SIDE", 32)
    x, weight = torch.randn(32, 32), torch.randn(32, 32)
    found = ceiling.product_of("reference", {}, x, weight)()
    torch.testing.assert_close(found["y"], x @ weight.T, rtol=1e-4, atol=1e-4)
    name, work = ceiling.products([("no_such_backend", {})])
    work()
    assert name == "torch"


def test_shares_of_the_ceiling() -> None:
    case = figures().cases[0]
    row = case.rows[0]
    assert case.median(row) == pytest.approx(0.4)
    assert case.of_flops(row) == pytest.approx(10**9 / 0.4 / (2 * 1024**3 / 0.02))
    assert case.of_bytes(row) == pytest.approx(10**8 / 0.4 / (2**28 / 0.01))
    assert case.share(row) == max(case.of_flops(row), case.of_bytes(row))
    assert math.isnan(case.spread(Row("x", seconds=[1.0])))


@pytest.mark.full
def test_processes_of_their_own(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command: a contestant whose process dies is a row, status 1; then nothing to do."""
    (tmp_path / "dies.py").write_text(
        "import os\n\ndef make(checkpoint, threads):\n    os._exit(3)\n"
    )
    out = tmp_path / "bench.json"
    command = ["bench", model, "--backends", "torch,onnxruntime", "--lengths", "4", "--rounds", "2"]
    command += ["--tokens", "2", "--threads", "1", "--json", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        assert invoke([*command, "--peers", "dies:make", "--html", str(tmp_path / "b.html")]) == 1
    assert "its process ended (3)" in capsys.readouterr().out
    result = read_result(out)
    assert [len(case.rows[0].seconds) for case in result.cases] == [2, 2]
    assert all(case.rows[1].difference < 1e-5 for case in result.cases)
    assert (tmp_path / "b.html").read_text().count("its process ended") >= 1
    assert invoke(command) == 2
    assert "measured with other settings" in capsys.readouterr().err
    assert invoke([*command, "--fresh"]) == 0


@pytest.mark.full
def test_a_worker_prints_elsewhere() -> None:
    """What libraries print does not mix with answers, and errors are reasons."""
    with Child(1) as child:
        assert child.ask("settle", vocabulary=5, clock="wall") is None
        with pytest.raises(ChildError, match="AttributeError"):
            child.ask("nothing_like_it")
        assert child.alive
