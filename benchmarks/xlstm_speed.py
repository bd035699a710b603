"""xLSTM models against their reference implementations and against what their weights alone cost.

Every figure is the median of turns that all contestants take in one run. Two floors are measured
in the same turns: for a prompt, the matrix products of all weights alone, in torch; for one token,
ONNX Runtime multiplying [1, K] by [K, N] over the same weights. The peers are the PyPI packages
``xlstm`` and ``mlstm_kernels``, and what torch exports of one step of theirs (``onnxscript``);
without these their rows are missing.

    python benchmarks/xlstm_speed.py [--rounds 5] [--cases "large decode" ..]
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from decode import bare_matmuls
from measuring import in_turn, read, write
from torch import Tensor
from xlstm_peers import peer_large, peer_stack

import seqmix
from seqmix.model import Model
from seqmix_xlstm.families import xlstm_block_stack_config, xlstm_large_config

WIDTH, BLOCKS, HEADS, VOCAB = 512, 6, 4, 256
Work = Callable[[], Any]
Prepare = Callable[[Model, Any, argparse.Namespace], dict[str, Work]]
CASES = ("large prefill", "large decode", "slstm prefill", "slstm decode", "slstm training")


def main() -> None:
    """Measure every case, print a table, and write it as CSV."""
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    cases: dict[str, tuple[Prepare, int]] = {
        "prefill": (prefill, args.length),
        "decode": (decode, args.steps),
        "training": (training, args.train_length),
    }
    for name, model, peer in families():
        for phase, (prepare, tokens) in cases.items():
            case = f"{name} {phase}"
            if case in args.cases:
                rows = measured(case, prepare(model, peer, args), args.rounds, tokens)
                replace_rows(case, rows, args.out / "xlstm.csv")


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a prompt")
    parser.add_argument("--steps", type=int, default=64, help="tokens that are decoded")
    parser.add_argument("--train-length", type=int, default=512)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def families() -> list[tuple[str, Model, Any]]:
    """The model of the second paper, and a stack of sLSTM blocks, each with its peer if any."""
    large = Model(xlstm_large_config(VOCAB, WIDTH, BLOCKS, heads=HEADS))
    stack = Model(xlstm_block_stack_config(VOCAB, WIDTH, BLOCKS, slstm_at="all", heads=HEADS))
    return [
        ("large", large.eval(), peer_large(VOCAB, WIDTH, BLOCKS, HEADS)),
        ("slstm", stack.eval(), peer_stack(VOCAB, WIDTH, BLOCKS, HEADS)),
    ]


def prefill(model: Model, peer: Any, args: argparse.Namespace) -> dict[str, Work]:
    """A whole prompt from an empty state; all but the last token's logits are dropped."""
    ids, positions = prompt(args.length)
    compiled = onnx(model, args, logits_to_keep=1)
    contestants: dict[str, Work] = {
        "floor: weight products": weight_products(model, args.length),
        "seqmix torch": without_gradients(lambda: model(ids, positions, None, 1)),
        "seqmix onnxruntime": lambda: compiled(ids, positions),
    }
    if peer is not None:
        contestants["peer"] = without_gradients(lambda: peer.prefill(ids))
    return contestants


def decode(model: Model, peer: Any, args: argparse.Namespace) -> dict[str, Work]:
    """Tokens one by one, each from the state after the one before."""
    compiled, floor = onnx(model, args), bare_matmuls(model)
    ids, _ = prompt(args.steps)

    def onnx_steps() -> None:
        states = compiled.initial_state(1)
        for t in range(args.steps):
            _, states = compiled(ids[:, t : t + 1], torch.tensor([[t]]), states)

    def torch_steps() -> None:
        states = None
        for t in range(args.steps):
            _, states = model(ids[:, t : t + 1], torch.tensor([[t]]), states)

    contestants: dict[str, Work] = {
        "floor: ONNX Runtime products": lambda: [floor() for _ in range(args.steps)],
        "seqmix torch": without_gradients(torch_steps),
        "seqmix onnxruntime": onnx_steps,
    }
    if peer is not None:
        contestants["peer"] = without_gradients(lambda: peer.decode(ids))
        if hasattr(peer, "onnx_decode") and (step := peer.onnx_decode(args.threads)) is not None:
            contestants["peer, exported by torch"] = lambda: step(ids)
    return contestants


def training(model: Model, peer: Any, args: argparse.Namespace) -> dict[str, Work]:
    """Forward and backward of one sequence."""
    ids, positions = prompt(args.train_length)

    def step() -> None:
        model.zero_grad()
        model(ids, positions)[0].logsumexp(-1).mean().backward()

    contestants: dict[str, Work] = {"seqmix torch": step}
    if peer is not None:
        contestants["peer"] = lambda: peer.train(ids)
    return contestants


def prompt(length: int) -> tuple[Tensor, Tensor]:
    """Random tokens and their positions."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCAB, (1, length), generator=generator)
    return ids, torch.arange(length).unsqueeze(0)


def onnx(model: Model, args: argparse.Namespace, **options: Any) -> Any:
    """The model on ONNX Runtime."""
    return seqmix.compile(model, "onnxruntime", options={"threads": args.threads}, **options)


def weight_products(model: Model, length: int) -> Work:
    """``[S, K] x [K, N]`` for every matrix of the model, one after the other."""
    matrices = [p.detach() for p in model.parameters() if p.dim() == 2]
    inputs = {k: torch.ones(length, k) for k in {m.shape[1] for m in matrices}}
    return lambda: [inputs[m.shape[1]] @ m.T for m in matrices]


def replace_rows(case: str, rows: list[dict[str, str]], path: Path) -> None:
    """Write the rows of a case in the place of those that were measured before."""
    both = [row for row in read(path) if row["case"] != case] + rows
    write(sorted(both, key=lambda row: CASES.index(row["case"])), path)


def without_gradients(work: Work) -> Work:
    """``work`` under no_grad."""

    def run() -> None:
        with torch.no_grad():
            work()

    return run


def measured(
    case: str, contestants: dict[str, Work], rounds: int, tokens: int
) -> list[dict[str, str]]:
    """One row per contestant, printed as soon as it is known."""
    rows = []
    for name, turns in in_turn(contestants, rounds).items():
        median = statistics.median(turns) / tokens * 1e6
        row = {
            "case": case,
            "implementation": name,
            "us_per_token": f"{median:.1f}",
            "min_us_per_token": f"{min(turns) / tokens * 1e6:.1f}",
        }
        rows.append(row)
        print("  ".join(f"{value:>28}" for value in row.values()), flush=True)
    return rows


if __name__ == "__main__":
    main()
