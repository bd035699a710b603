"""Forward and backward of mixers against other implementations of them, in turn, in one run.

Width 256, 2048 tokens, float32, equal sizes and options, gradients of all parameters and of the
input. One thread and its CPU seconds, medians of turns: what else the machine does disturbs them
least. ``plain`` is a long convolution as it is usually written in torch, by transforms of twice
the length. Rows that are in the CSV already are kept, so that a run can be cut off and taken up
again.

    python benchmarks/mixers_peers.py [--zoology CHECKOUT] [--cases hyena s4d] [--again]
        [--rounds 7] [--within 90] [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from measuring import in_turn, read, write
from mixer_peers import plain, rwkv, zoology
from mixer_peers.pairs import LENGTH, OURS, SLOW, THEIRS, WIDTH, Peer
from torch import Tensor, nn

from seqmix import registry
from seqmix.config import build_config
from seqmix.context import Context
from seqmix.mixer import SequenceMixer
from seqmix.state import initial_state

BATCHES = (1, 2)
Row = dict[str, str]


def main() -> None:
    """Measure what the CSV lacks, print it, and write it."""
    args = parse_arguments()
    torch.set_num_threads(1)
    path, started = args.out / "mixers_peers.csv", time.monotonic()
    sources = {"plain"}
    sources |= {"zoology"} if zoology.add_checkout(args.zoology) else set()
    sources |= {"transformers"} if rwkv.installed() else set()
    rows: dict[tuple[int, str], list[Row]] = {}
    for row in read(path):
        if not (args.again and row["case"] in args.cases):
            rows.setdefault((int(row["batch"]), row["case"]), []).append(row)
    for batch in BATCHES:
        for case in args.cases:
            late = time.monotonic() - started > args.within
            if not late and (batch, case) not in rows:
                present = [peer for peer in THEIRS[case] if peer.source in sources]
                rows[batch, case] = measured(case, batch, args.rounds, present)
                order = sorted(rows, key=lambda key: (key[0], list(OURS).index(key[1])))
                write([row for key in order for row in rows[key]], path)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    checkout = os.environ.get("ZOOLOGY")
    parser.add_argument("--zoology", type=Path, default=Path(checkout) if checkout else None)
    parser.add_argument("--cases", nargs="+", choices=OURS, default=list(OURS))
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contestant")
    parser.add_argument("--within", type=float, default=1e9, help="seconds, then no new case")
    parser.add_argument("--again", action="store_true", help="measure rows that the CSV has")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def measured(case: str, batch: int, rounds: int, present: list[Peer]) -> list[Row]:
    """One row per contestant, printed as soon as it is known."""
    torch.manual_seed(0)
    modules = {"seqmix": FromNothing(OURS[case], batch)}
    contestants: dict[str, nn.Module] = {**modules, **{peer.label: made(peer) for peer in present}}
    passes = {name: both_ways(module, batch) for name, module in contestants.items()}
    seconds = in_turn(passes, 2 if case in SLOW else rounds, time.process_time)
    medians = {name: statistics.median(turns) for name, turns in seconds.items()}
    rows = []
    for name, module in contestants.items():
        row = {
            "case": case,
            "batch": str(batch),
            "implementation": name,
            "parameters": str(sum(p.numel() for p in module.parameters() if p.requires_grad)),
            "median_ms": f"{medians[name] * 1e3:.1f}",
            "min_ms": f"{min(seconds[name]) * 1e3:.1f}",
            "times_seqmix": f"{medians[name] / medians['seqmix']:.2f}",
        }
        rows.append(row)
        print("  ".join(f"{value:>26}" for value in row.values()), flush=True)
    return rows


class FromNothing(nn.Module):
    """A mixer of seqmix, called on whole sequences from an empty state as a model calls it."""

    def __init__(self, options: dict[str, Any], batch: int) -> None:
        """``options`` are those of a branch in a configuration."""
        super().__init__()
        kind, own = options["kind"], {k: v for k, v in options.items() if k != "kind"}
        cls = cast(type[SequenceMixer], registry.get("mixers", kind))
        self.mixer = cls(build_config(cls.Config, own, f"mixer '{kind}'"), WIDTH)
        self.positions = torch.arange(LENGTH).expand(batch, -1)
        self.state = initial_state(self.mixer.state_spec(), batch, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """Mix ``x [B, S, D]``."""
        y: Tensor = self.mixer(x, self.state, Context(self.positions))[0]
        return y


def made(peer: Peer) -> nn.Module:
    """The other implementation."""
    if peer.source == "zoology":
        return zoology.mixer(peer.place, peer.name, peer.options)
    if peer.source == "transformers":
        return rwkv.mixer(peer.name, **peer.options)
    module: nn.Module = getattr(plain, peer.name)(**peer.options)
    return module


def both_ways(module: nn.Module, batch: int) -> Callable[[], None]:
    """Forward and backward with the same input and the same gradient of the output."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, LENGTH, WIDTH, generator=generator).requires_grad_()
    grad = torch.randn(batch, LENGTH, WIDTH, generator=generator)

    def turn() -> None:
        x.grad = None
        module.zero_grad()
        torch.autograd.backward(module(x), grad)

    return turn


if __name__ == "__main__":
    main()
