"""Backends against each other and against what their machine can do, in turn, in one run.

- products: ``x [M, K] @ weight [N, K].T`` by torch, ONNX Runtime, and the tvm backend. In decoding
  (M = 1) a weight comes from memory once per token: there as many weights as do not fit into the
  caches are multiplied one after the other, and then a single one that does.
- decode: one token of smollm2 at a past of 512. The floor is ONNX Runtime multiplying [1, K] by
  [K, N] over the same weights, and nothing else.
- prefill: 512 tokens of smollm2 at once.
- xlstm decode, slstm prefill: the models of ``xlstm_speed.py``, with the peers that are installed;
  ``torch.nn.LSTM`` of the same width and depth beside the sLSTM stack.

Every figure is a median over rounds in which all contestants take their turn. Between two turns is
a pause, for threads that spin after their work. Rows of the cases that are measured take the place
of those in the file.

    python benchmarks/backends.py [--only decode prefill ..] [--threads 2] [--rounds 25]
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from backend_contestants import (
    cached_products,
    lstm_layers,
    many_products,
    smollm2_decode,
    smollm2_prefill,
)
from measuring import in_turn, read, write
from xlstm_speed import decode as xlstm_decode
from xlstm_speed import families, prompt
from xlstm_speed import prefill as xlstm_prefill

import seqmix

Work = Callable[[], Any]
Case = tuple[str, dict[str, Work], int, int]
"""Name, contestants, rounds, and how many times a turn does what is measured."""

CASES = ("products", "decode", "prefill", "xlstm decode", "slstm prefill")
SHAPES = ((512, 512, 512), (1026, 2048, 512))
ROW = (1, 1536, 576)


def main() -> None:
    """Measure, print a table, and write it as CSV."""
    args = parse_arguments()
    # Read when a library is loaded first.
    os.environ["TVM_NUM_THREADS"] = str(args.threads)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    makers: dict[str, Callable[[argparse.Namespace], list[Case]]] = {
        "products": products,
        "decode": lambda args: smollm2(args, smollm2_decode, args.rounds),
        "prefill": lambda args: smollm2(args, smollm2_prefill, args.long_rounds),
        "xlstm decode": lambda args: [xlstm(args, 0)],
        "slstm prefill": lambda args: [xlstm(args, 1)],
    }
    for name in args.only:
        with torch.inference_mode():
            for case, contestants, rounds, count in makers[name](args):
                rows = measured(case, contestants, rounds, count)
                replace_rows(case, rows, args.out / "backends.csv")


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES, help="cases to measure")
    parser.add_argument("--rounds", type=int, default=25, help="turns of each contestant")
    parser.add_argument("--long-rounds", type=int, default=5, help="turns that take seconds")
    parser.add_argument("--past", type=int, default=512, help="tokens in the cache")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a prompt of xLSTM")
    parser.add_argument("--steps", type=int, default=64, help="tokens that xLSTM decodes")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def products(args: argparse.Namespace) -> list[Case]:
    """A product of each shape; one row over many weights, and over one."""
    cases = [
        (f"product {shape}", many_products(*shape, 1, args.threads), args.rounds, 1)
        for shape in SHAPES
    ]
    many = 32
    cases.append((f"product {ROW}", many_products(*ROW, many, args.threads), args.rounds, many))
    cached = cached_products(*ROW, many, args.threads)
    return [*cases, (f"product {ROW} in cache", cached, args.rounds, many)]


def smollm2(args: argparse.Namespace, make: Any, rounds: int) -> list[Case]:
    """A phase of smollm2."""
    name = "decode" if make is smollm2_decode else "prefill"
    return [(f"smollm2 {name}", make(args.past, args.threads), rounds, 1)]


def xlstm(args: argparse.Namespace, place: int) -> Case:
    """A phase of an xLSTM model, by every backend and the peers."""
    name, model, peer = families()[place]
    ids, positions = prompt(args.length)
    if place == 0:
        contestants = xlstm_decode(model, peer, args)
        contestants["seqmix tvm"] = one_by_one(model, ids[:, : args.steps])
        return f"{name} decode", contestants, args.long_rounds, args.steps
    contestants = xlstm_prefill(model, peer, args)
    compiled = seqmix.compile(model, "tvm", logits_to_keep=1, cache=False)
    contestants["seqmix tvm"] = lambda: compiled(ids, positions)
    contestants["torch.nn.LSTM"] = lstm_layers(model, args.length)
    return f"{name} prefill", contestants, args.long_rounds, args.length


def one_by_one(model: Any, ids: torch.Tensor) -> Work:
    """Tokens one after the other, on the tvm backend."""
    compiled = seqmix.compile(model, "tvm", cache=False)

    def steps() -> None:
        states = compiled.initial_state(1)
        for t in range(ids.shape[1]):
            _, states = compiled(ids[:, t : t + 1], torch.tensor([[t]]), states)

    return steps


def measured(
    case: str, contestants: dict[str, Work], rounds: int, count: int
) -> list[dict[str, str]]:
    """One row per contestant: microseconds, and how often torch's and ONNX Runtime's time."""
    turns = in_turn(contestants, rounds, pause=0.02)
    medians = {name: statistics.median(t) / count for name, t in turns.items()}
    rows = []
    for name, seconds in turns.items():
        row = {
            "case": case,
            "implementation": name,
            "median_us": f"{medians[name] * 1e6:.1f}",
            "min_us": f"{min(seconds) / count * 1e6:.1f}",
            "spread": f"{spread(seconds):.2f}",
            **{f"x_{short}": ratio(medians, name, short) for short in ("floor", "torch", "onnx")},
        }
        rows.append(row)
        print("  ".join(f"{value:>14}" for value in row.values()), flush=True)
    return rows


def ratio(medians: dict[str, float], name: str, short: str) -> str:
    """How much faster a contestant is than another, whose name has a word; empty without it."""
    others = [n for n in medians if short in n and "peer" not in n and "LSTM" not in n]
    return f"{medians[others[0]] / medians[name]:.2f}" if others else ""


def spread(seconds: list[float]) -> float:
    """The distance of the quartiles, in medians: how much a figure is worth."""
    low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75))
    return float((high - low) / middle)


def replace_rows(case: str, rows: list[dict[str, str]], path: Path) -> None:
    """Write the rows of a case in the place of those that were measured before."""
    write([row for row in read(path) if row["case"] != case] + rows, path)


if __name__ == "__main__":
    main()
