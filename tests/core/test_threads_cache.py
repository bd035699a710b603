"""Processes and threads that want the same compilation at once: one makes it, the others wait."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from tests.core import tiny

from seqmix import cache, cache_room
from seqmix.storage import save_model

COMPILE = """
import json, sys, time
import torch
from seqmix.checkpoint import resolve
from seqmix.compile import compile
model, backend, out = sys.argv[1:]
checkpoint = resolve(model)
sys.stdin.readline()
began = time.perf_counter()
executable = compile(checkpoint, backend)
seconds = time.perf_counter() - began
ids = torch.arange(5)[None]
torch.save(executable(ids, ids)[0], out)
kept = "read from the compile cache" in executable.report.notes
print(json.dumps({"kept": kept, "seconds": seconds}))
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQMIX_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make_slowly(log: Path) -> None:
    """What a compilation does: look, wait for others, look again, make it."""

    def write(folder: Path) -> None:
        time.sleep(0.1)
        (folder / "made").write_text("whole", encoding="utf-8")

    with cache.one_writer("k"):
        if cache.fetch("k") is None:
            with log.open("a", encoding="utf-8") as file:
                file.write("made\n")
            cache.store("k", write)


def test_processes_make_an_entry_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=make_slowly, args=(tmp_path / "log",)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert (tmp_path / "log").read_text() == "made\n"
    assert cache.fetch("k") is not None
    assert list((tmp_path / "cache" / "locks").iterdir()) == []


def test_threads_make_an_entry_once(tmp_path: Path) -> None:
    workers = [threading.Thread(target=make_slowly, args=(tmp_path / "log",)) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (tmp_path / "log").read_text() == "made\n"


def test_threads_hold_an_entry_once(home: Path) -> None:
    cache.store("k", lambda folder: None)
    folder = home / "compiled" / "k"
    descriptors = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    workers = [threading.Thread(target=cache.fetch, args=("k",)) for _ in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    cache_room.release(folder)
    if descriptors:
        assert len(os.listdir("/proc/self/fd")) == descriptors
    assert cache_room._push_out(folder), "somebody still holds it"


def test_who_dies_lets_the_others_go_on(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    lock = tmp_path / "cache" / "locks" / "k"

    def hold() -> None:
        with cache.one_writer("k"):
            time.sleep(600)

    worker = context.Process(target=hold)
    worker.start()
    end = time.monotonic() + 60
    while not lock.exists() and time.monotonic() < end:
        time.sleep(0.01)
    worker.kill()
    worker.join()
    make_slowly(tmp_path / "log")
    assert (tmp_path / "log").read_text() == "made\n"


def test_without_a_place_for_locks_there_is_no_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SEQMIX_CACHE_DIR", str(tmp_path / "file"))
    with cache.one_writer("k"):
        make_slowly(tmp_path / "log")
    assert (tmp_path / "log").read_text() == "made\n"


@pytest.mark.full
@pytest.mark.parametrize("backend", ["onnxruntime", "tvm"])
def test_two_processes_compile_one_model(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    model = tiny.model([tiny.ATTENTION])
    save_model(model, tmp_path / "model")
    outs = [tmp_path / "one.pt", tmp_path / "other.pt"]
    given = [sys.executable, "-c", COMPILE, str(tmp_path / "model"), backend]
    started = [
        subprocess.Popen(
            [*given, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for out in outs
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [json.loads(process.communicate(timeout=600)[0]) for process in started]
    assert sorted(one["kept"] for one in said) == [False, True], said
    expected, _ = model(torch.arange(5)[None], torch.arange(5)[None])
    for out in outs:
        torch.testing.assert_close(torch.load(out), expected, atol=1e-4, rtol=1e-4)
    (entry,) = (tmp_path / "cache" / "compiled").iterdir()
    assert cache.fetch(entry.name) is not None
    print(backend, said)
