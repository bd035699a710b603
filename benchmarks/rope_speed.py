"""Static YaRN costs nothing: tokens per second as without scaling, in one run, in turn.

The encoding changes the tables of cosines and sines, not what is computed with them. Reading a
prompt and decoding are measured apart; medians of the turns, and how far the turns lie apart. The
first method stands a second time in each turn: its ratio to itself is the noise. With ``--clock
cpu`` (one thread) time is what the process computes, whatever else the machine does.

    python benchmarks/rope_speed.py [--rounds 7] [--threads 1] [--clock cpu]

writes ``benchmarks/results/rope_speed.csv``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from measuring import in_turn, write

from seqmix.errors import IRError, SeqmixError

METHODS = ("none", "yarn:2")
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rope", nargs="+", default=METHODS)
    parser.add_argument("--prompt", type=int, default=256, help="tokens that are read at once")
    parser.add_argument("--new", type=int, default=16, help="tokens that are decoded")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    try:
        run(args)
    except (SeqmixError, IRError) as error:
        sys.exit(f"error: {error}")


def run(args: argparse.Namespace) -> None:
    """All methods in turn, first reading, then decoding."""
    import torch

    from seqmix_longcontext.methods import parse_method
    from seqmix_longcontext.subject import Subject

    if args.threads:
        torch.set_num_threads(args.threads)
    subject = Subject.read(args.model)
    models = {name: subject.runner(parse_method(name)) for name in args.rope}
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    rows: list[dict[str, Any]] = []
    for phase, count, make in (("prompt", args.prompt, reading), ("decode", args.new, decoding)):
        work = {name: make(model, args) for name, model in models.items()}
        work[f"{args.rope[0]} again"] = make(models[args.rope[0]], args)
        seconds = in_turn(work, args.rounds, clock)
        base = statistics.median(seconds[args.rope[0]])
        for name, turns in seconds.items():
            rows.append(row_of(phase, name, count, turns, base))
            print("  ".join(f"{value!s:>12}" for value in rows[-1].values()), flush=True)
    write(rows, args.results / "rope_speed.csv")


def row_of(phase: str, name: str, count: int, turns: list[float], base: float) -> dict[str, Any]:
    """Tokens per second of the median turn, the spread of the turns, and the median's ratio."""
    middle = statistics.median(turns)
    return {
        "phase": phase,
        "method": name,
        "tokens_per_second": f"{count / middle:.2f}",
        "slowest": f"{count / max(turns):.2f}",
        "fastest": f"{count / min(turns):.2f}",
        "time_ratio": f"{middle / base:.3f}",
    }


def reading(model: Any, args: argparse.Namespace) -> Callable[[], None]:
    """Reads a prompt from nothing."""
    import torch

    ids = torch.arange(1000, 1000 + args.prompt).unsqueeze(0) % model.config.vocab_size
    positions = torch.arange(args.prompt).unsqueeze(0)

    @torch.inference_mode()
    def work() -> None:
        model(ids, positions, None, 1)

    return work


def decoding(model: Any, args: argparse.Namespace) -> Callable[[], None]:
    """Goes on token by token behind the prompt."""
    import torch

    ids = torch.arange(1000, 1000 + args.prompt).unsqueeze(0) % model.config.vocab_size
    with torch.inference_mode():
        _, after = model(ids, torch.arange(args.prompt).unsqueeze(0), None, 1)

    @torch.inference_mode()
    def work() -> None:
        states = after
        for place in range(args.prompt, args.prompt + args.new):
            _, states = model(ids[:, :1], torch.tensor([[place]]), states, 1)

    return work


if __name__ == "__main__":
    main()
