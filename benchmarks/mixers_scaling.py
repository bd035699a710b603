"""Time and memory of every registered mixer against the length of the prompt, and of the past.

A model of two equal layers, width 256, batch 1, float32, from an empty state. One thread, and its
CPU seconds: what else the machine does disturbs them least. Per backend and mixer one process
compiles the model; every length then runs in a fork of it, which reports the median time of a
forward pass, by how much its memory grew at most, and the median time of one token more. Where a
forward is expected to take more than ``--limit`` seconds or ``--memory`` MiB, a row says so
instead. Explicit filters are as long as the prompt. Needs matplotlib for the plot (``pip install
'seqmix[plots]'``).

Rows that are in the CSV already are kept, so that a run can be cut off and taken up again.

    python benchmarks/mixers_scaling.py [--longest 16384] [--cases hyena s4d] [--again]
        [--backends torch onnxruntime] [--within 90] [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from measuring import exponent, peak, read, write
from mixer_cases import CASES, WIDTH, missing, options

LAYERS, VOCAB, SHORTEST, FITTED, ENOUGH = 2, 64, 256, 2048, 1.5
BACKENDS = ("torch", "onnxruntime")
KEY = ("backend", "mixer", "length")
Row = dict[str, str]


def main() -> None:
    """Measure what the CSV lacks, or one backend and mixer when the parent asks."""
    args = parse_arguments()
    if args.one:
        measure(args)
        return
    if uncovered := missing():
        raise SystemExit(f"mixer_cases.py has no case for: {', '.join(sorted(uncovered))}")
    path, started = args.out / "mixers_scaling.csv", time.monotonic()
    rows = {tuple(row[k] for k in KEY): row for row in read(path)}
    if args.again:
        chosen = {(backend, case) for backend in args.backends for case in args.cases}
        rows = {key: row for key, row in rows.items() if key[:2] not in chosen}
    for backend in args.backends:
        for case in args.cases:
            left = args.within - (time.monotonic() - started)
            if left <= 0:
                break
            for row in series(backend, case, rows, args, left):
                rows[tuple(row[k] for k in KEY)] = row
                write(in_order(rows.values()), path)
    finish(in_order(rows.values()), args.out)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--longest", type=int, default=16384)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--rounds", type=int, default=3, help="turns of a forward pass")
    parser.add_argument("--steps", type=int, default=9, help="turns of one token more")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of a forward pass")
    parser.add_argument("--memory", type=float, default=4096.0, help="MiB of a forward pass")
    parser.add_argument("--within", type=float, default=1e9, help="seconds, then no new length")
    parser.add_argument("--again", action="store_true", help="measure rows that the CSV has")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def lengths(longest: int) -> list[int]:
    """From the shortest, doubling."""
    return [SHORTEST << n for n in range(32) if SHORTEST << n <= longest]


def series(
    backend: str, case: str, rows: dict[Any, Row], args: argparse.Namespace, left: float
) -> Iterator[Row]:
    """A row for every length that ``rows`` lacks, as soon as it is known."""
    known = {n: rows.get((backend, case, str(n))) for n in lengths(args.longest)}
    if all(known.values()):
        return
    done = {n: row for n, row in known.items() if row and row["seconds"]}
    wanted: dict[str, Any] = {"missing": [n for n, row in known.items() if not row]}
    for column in ("seconds", "megabytes"):
        wanted[column] = {n: float(row[column]) for n, row in done.items()}
    command = [sys.executable, __file__, "--one", backend, case, json.dumps(wanted)]
    command += ["--rounds", str(args.rounds), "--steps", str(args.steps)]
    command += ["--limit", str(args.limit), "--memory", str(args.memory), "--within", str(left)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout or ():
            row: Row = {"backend": backend, "mixer": case, **json.loads(line)}
            print("  ".join(f"{value:>12}" for value in row.values()), flush=True)
            yield row
    if child.returncode:
        print(f"{backend} {case}: exit {child.returncode}", flush=True)


def measure(args: argparse.Namespace) -> None:
    """Print a row as JSON per missing length: times, and megabytes at the peak."""
    deadline = time.monotonic() + args.within
    backend, case, wanted = args.one[0], args.one[1], json.loads(args.one[2])
    seconds, megabytes = (
        {int(length): value for length, value in wanted[column].items()}
        for column in ("seconds", "megabytes")
    )
    runner = Runner(backend, options(case, SHORTEST))
    for length in wanted["missing"]:
        if time.monotonic() > deadline:
            return
        row = {"length": str(length), "seconds": "", "megabytes": "", "us_step": "", "note": ""}
        expected, room = extrapolated(seconds, length), extrapolated(megabytes, length)
        if expected > args.limit or room > args.memory:
            row["note"] = f"skipped: about {expected:.0f} s and {room:.0f} MiB expected"
        else:
            if options(case, length) != runner.options:
                runner = Runner(backend, options(case, length))
            found = in_fork(partial(runner.figures, length, args.rounds, args.steps))
            if found is None:
                row["note"] = "failed"
            else:
                seconds[length], megabytes[length] = found["seconds"], found["megabytes"]
                row["seconds"] = f"{found['seconds']:.5f}"
                row["megabytes"] = f"{found['megabytes']:.1f}"
                row["us_step"] = f"{found['us_step']:.0f}"
        print(json.dumps(row), flush=True)


def extrapolated(found: dict[int, float], length: int) -> float:
    """What ``length`` should cost after the two lengths before it, 0 when they are not known."""
    before = [found.get(length >> n, 0.0) for n in (1, 2)]
    return before[0] ** 2 / before[1] if all(before) else 0.0


class Runner:
    """A compiled model of two layers."""

    def __init__(self, backend: str, options: dict[str, Any]) -> None:
        """Compile it, and run it once."""
        import torch

        import seqmix
        from seqmix.config import BlockConfig, Kind, ModelConfig
        from seqmix.model import Model

        self.options = options
        torch.manual_seed(0)
        torch.set_num_threads(1)
        config = ModelConfig(
            vocab_size=VOCAB,
            width=WIDTH,
            context_length=1 << 15,
            blocks=[BlockConfig(repeat=LAYERS, steps=[Kind(**options)])],
        )
        model = Model(config).eval()
        threads = {"threads": 1} if backend == "onnxruntime" else {}
        self.run = seqmix.compile(model, backend=backend, options=threads, logits_to_keep=1)
        self.ids = torch.randint(0, VOCAB, (1, 1 << 15))
        self.positions = torch.arange(1 << 15).unsqueeze(0)
        with torch.inference_mode():
            self.run(self.ids[:, :64], self.positions[:, :64])

    def figures(self, length: int, rounds: int, steps: int) -> dict[str, float]:
        """Seconds of a forward pass, MiB that it needed, microseconds of one token after it."""
        import torch

        ids, positions = self.ids[:, :length], self.positions[:, :length]
        token, here = self.ids[:, length : length + 1], self.positions[:, length : length + 1]
        with torch.inference_mode():
            before = peak()
            forward, (_, states) = timed(lambda: self.run(ids, positions), rounds)
            grown = peak() - before
            step, _ = timed(lambda: self.run(token, here, states), steps)
        return {"seconds": forward, "megabytes": grown, "us_step": 1e6 * step}


def timed(work: Callable[[], Any], turns: int) -> tuple[float, Any]:
    """The median of the CPU seconds after one turn that does not count, and the last result.

    The first counts, and is the only one, when it takes longer than ``ENOUGH`` seconds; no turn
    begins after as many.
    """
    seconds: list[float] = []
    while len(seconds) <= turns and sum(seconds) < ENOUGH:
        started = time.process_time()
        result = work()
        seconds.append(time.process_time() - started)
    return statistics.median(seconds[1:] or seconds), result


def in_fork(work: Callable[[], dict[str, float]]) -> dict[str, float] | None:
    """The result of ``work`` in a process of its own, whose peak starts at what it has now."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    into, out_of = os.pipe()[::-1]
    child = os.fork()
    if child == 0:
        os.write(into, json.dumps(work()).encode())
        os._exit(0)
    os.close(into)
    with os.fdopen(out_of) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def in_order(rows: Any) -> list[Row]:
    """By backend, mixer and length."""
    cases = list(CASES)
    return sorted(
        rows,
        key=lambda r: (BACKENDS.index(r["backend"]), cases.index(r["mixer"]), int(r["length"])),
    )


def finish(rows: list[Row], out: Path) -> None:
    """Fit the exponents, print and write them, and draw everything."""
    fits = []
    for backend in BACKENDS:
        for case in CASES:
            own = [r for r in rows if (r["backend"], r["mixer"]) == (backend, case)]
            if own:
                fits.append({"backend": backend, "mixer": case, **exponents(own)})
    for fit in fits:
        print("  ".join(f"{value:>24}" for value in fit.values()))
    write(fits, out / "mixers_exponents.csv")
    from mixers_plot import plot

    plot(rows, fits, out / "mixers_scaling.png")


def exponents(rows: list[Row]) -> Row:
    """Of time and memory over the long half of the lengths, of a step's time over all of them."""
    ranges = {"seconds": FITTED, "megabytes": FITTED, "us_step": SHORTEST}
    found = {}
    for column, first in ranges.items():
        own = [r for r in rows if r[column] and int(r["length"]) >= first and float(r[column]) > 0]
        slope = exponent([int(r["length"]) for r in own], [float(r[column]) for r in own])
        found[column] = f"{slope:.2f}"
    return found


if __name__ == "__main__":
    main()
