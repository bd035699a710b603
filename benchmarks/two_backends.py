"""Two compiled models of two backends in one process, and whether one slows the other down.

ONNX Runtime and TVM have a pool of threads each. Three processes take turns: one with either, and
one with both, whose calls alternate. A turn is a number of calls; what counts is the median over
all turns of the seconds of a call, and of the seconds that its threads compute meanwhile, which
other work on the machine does not change.

    python benchmarks/two_backends.py [--threads 2] [--rounds 15]

writes ``benchmarks/results/two_backends.csv``; exits with 1 when the two together are more than 1.2
times as slow as alone, by either clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

BACKENDS = ("onnxruntime", "tvm")
PHASES = ("prefill", "decode")
LENGTH, CALLS = 128, 10
LIMIT = 1.2
RESULT = Path(__file__).parent / "results" / "two_backends.csv"


def main() -> int:
    """Let the processes take turns; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--results", type=Path, default=RESULT)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker.split(","), args.threads)
        return 0
    rows = measure(args.threads, args.rounds)
    from measuring import write

    write(rows, args.results)
    for row in rows:
        print(row)
    return int(any(float(row[f"{c}_ratio"]) > LIMIT for row in rows for c in ("wall", "cpu")))


def measure(threads: int, rounds: int) -> list[dict[str, Any]]:
    """A row per phase and backend: milliseconds of a call alone and beside the other."""
    workers = {name: Worker(name, threads) for name in (*BACKENDS, ",".join(BACKENDS))}
    both = ",".join(BACKENDS)
    found: dict[tuple[str, str, str, str], list[float]] = {}
    for _ in range(rounds):
        for phase in PHASES:
            for name, worker in workers.items():
                for backend, clocks in worker.turn(phase).items():
                    kind = "beside" if name == both else "alone"
                    for clock, seconds in clocks.items():
                        found.setdefault((phase, backend, kind, clock), []).append(seconds)
    for worker in workers.values():
        worker.end()
    return [row_of(phase, b, threads, rounds, found) for phase in PHASES for b in BACKENDS]


def row_of(
    phase: str,
    backend: str,
    threads: int,
    rounds: int,
    found: dict[tuple[str, str, str, str], list[float]],
) -> dict[str, Any]:
    """Medians over the turns, and their ratio, by either clock."""
    row: dict[str, Any] = {
        "phase": phase, "backend": backend, "threads": threads, "rounds": rounds
    }  # fmt: skip
    for clock in ("wall", "cpu"):
        medians = {
            kind: statistics.median(found[phase, backend, kind, clock])
            for kind in ("alone", "beside")
        }
        row |= {f"{clock}_{kind}_ms": f"{1000 * s:.3f}" for kind, s in medians.items()}
        row[f"{clock}_ratio"] = f"{medians['beside'] / medians['alone']:.3f}"
    return row


class Worker:
    """A process with one backend, or with several whose calls alternate."""

    def __init__(self, names: str, threads: int) -> None:
        """Start it, and wait until everything is compiled and warm."""
        command = [sys.executable, __file__, "--worker", names, "--threads", str(threads)]
        variables = {name: str(threads) for name in ("OMP_NUM_THREADS", "TVM_NUM_THREADS")}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )
        self._answer()

    def turn(self, phase: str) -> dict[str, dict[str, float]]:
        """Seconds of a call by backend and clock: the medians of one turn."""
        self._say(phase)
        found: dict[str, dict[str, float]] = json.loads(self._answer())
        return found

    def end(self) -> None:
        """Let the process end."""
        self._say("end")
        self._process.wait()

    def _say(self, word: str) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(word + "\n")
            self._process.stdin.flush()

    def _answer(self) -> str:
        line = "" if self._process.stdout is None else self._process.stdout.readline()
        if not line:
            raise SystemExit("a worker has ended; run it by hand with --worker to see why")
        return line


def work(backends: list[str], threads: int) -> None:
    """What a process does: compile, then a turn for every line that it reads."""
    calls = {name: calls_of(name, threads) for name in backends}
    for phase in PHASES:
        for call in calls.values():
            call[phase]()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            return
        turns = alternating({name: call[line.strip()] for name, call in calls.items()})
        print(json.dumps(turns), flush=True)


def alternating(calls: dict[str, Callable[[], object]]) -> dict[str, dict[str, float]]:
    """One call of each after the other, again and again; the median of each by either clock."""
    taken: dict[str, dict[str, list[float]]] = {n: {"wall": [], "cpu": []} for n in calls}
    for _ in range(CALLS):
        for name, call in calls.items():
            began, computed = time.perf_counter(), time.process_time()
            call()
            taken[name]["wall"].append(time.perf_counter() - began)
            taken[name]["cpu"].append(time.process_time() - computed)
    return {
        name: {clock: statistics.median(seconds) for clock, seconds in clocks.items()}
        for name, clocks in taken.items()
    }


def calls_of(backend: str, threads: int) -> dict[str, Callable[[], object]]:
    """A prompt, and a token behind it, on a compiled model."""
    import torch

    from seqmix import registry
    from seqmix.compile import compile
    from seqmix.config import ModelConfig
    from seqmix.model import Model

    torch.manual_seed(0)
    config = ModelConfig.model_validate(
        {
            "vocab_size": 512, "width": 256, "context_length": 512, "head_dim": 32,
            "position": {"kind": "rope"},
            "blocks": [{"repeat": 4, "steps": [
                {"kind": "attention", "heads": 8, "head_dim": 32},
                {"kind": "swiglu", "hidden": 640},
            ]}],
        }
    )  # fmt: skip
    options = registry.get("backends", backend)().thread_options(threads)
    executable = compile(Model(config).eval(), backend, options=options)
    ids = torch.randint(0, 512, (1, LENGTH))
    positions = torch.arange(LENGTH)[None]
    _, states = executable(ids, positions)
    last = torch.full((1, 1), LENGTH)
    return {
        "prefill": lambda: executable(ids, positions),
        "decode": lambda: executable(ids[:, :1], last, states),
    }


if __name__ == "__main__":
    sys.exit(main())
