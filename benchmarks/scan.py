"""Recurrent layers by ``seqmix.scan``, forward and in training, beside other ways to the same.

The sLSTM takes pre-activations of its gates, LSTM and GRU project their inputs. Every figure is
the median of turns that all contestants of a case take one after the other; one that is far slower
than the others takes fewer (column ``turns``). The package ``xlstm`` takes part if it is installed.

    python benchmarks/scan.py [--threads 1] [--rounds 5] [--cell slstm lstm gru] [--length 512 2048]

B batch, S sequence, W width.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from measuring import write
from scan_contestants import LAYERS, SlstmOp, by_loop, compiled, peer_slstm
from torch import Tensor, nn

Work = Callable[[], Any]
Layer = Callable[[Tensor], Tensor]
BACKENDS = ("onnxruntime", "tvm")


def main() -> None:
    """Measure every case, print a table, and write it as CSV."""
    args = parse_arguments()
    os.environ.setdefault("TVM_NUM_THREADS", str(args.threads))
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    rows: list[dict[str, object]] = []
    for name in args.cell:
        torch.manual_seed(0)
        layer = LAYERS[name](args.width)
        eager, forward_only = contestants(name, layer, args)
        for length in args.length:
            x = torch.randn(args.batch, length, layer.inputs, requires_grad=True)
            forward = {n: _forward(f, x) for n, f in {**eager, **forward_only}.items()}
            training = {n: _training(f, x) for n, f in eager.items()}
            for phase, works in (("forward", forward), ("training", training)):
                rows += measured(f"{name} {phase}", length, works, args)
                write(rows, args.out / "scan.csv")


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--length", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--cell", nargs="+", choices=tuple(LAYERS), default=list(LAYERS))
    parser.add_argument(
        "--patience", type=float, default=3.0, help="seconds of a turn that is long"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def contestants(
    name: str, layer: Any, args: argparse.Namespace
) -> tuple[dict[str, Layer], dict[str, Layer]]:
    """Those that train, and those that only run forward."""
    train: dict[str, Layer] = {"seqmix.scan": layer, "loop, autograd": by_loop(layer)}
    if name == "slstm":
        by_hand = SlstmOp(args.width)
        by_hand.recurrent = layer.recurrent
        train["op of the plugin"] = by_hand
        peer = peer_slstm(args.width, args.batch)
        if peer is not None:
            train["xlstm"] = peer
    else:
        train[f"torch.nn.{name.upper()}"] = lambda x: layer.of_torch(x)[0]
    forward = {backend: compiled(layer, backend, args.threads) for backend in BACKENDS}
    agree({**train, **forward}, layer)
    return train, forward


def agree(layers: dict[str, Layer], layer: Any) -> None:
    """All compute the same; but for the peer, which draws weights of its own."""
    x = torch.randn(2, 40, layer.inputs)
    wanted = layer(x)
    for name, other in layers.items():
        if name != "xlstm":
            torch.testing.assert_close(other(x), wanted, rtol=1e-3, atol=1e-4)


def _forward(layer: Layer, x: Tensor) -> Work:
    def run() -> None:
        with torch.no_grad():
            layer(x.detach())

    return run


def _training(layer: Layer, x: Tensor) -> Work:
    """One step forward and back; gradients of input and weights are dropped each time."""
    owner = layer if isinstance(layer, nn.Module) else None

    def run() -> None:
        x.grad = None
        if owner is not None:
            owner.zero_grad()
        torch.autograd.backward(layer(x).square().mean())

    return run


def measured(
    case: str, length: int, works: dict[str, Work], args: argparse.Namespace
) -> list[dict[str, object]]:
    """A row per contestant: median seconds, and how many times ``seqmix.scan`` is faster."""
    seconds = turns(works, args.rounds, args.patience)
    ours = statistics.median(seconds["seqmix.scan"])
    rows: list[dict[str, object]] = []
    for name, times in seconds.items():
        median = statistics.median(times)
        print(f"{case:14} S={length:<5} {name:18} {median * 1e3:10.1f} ms  {median / ours:6.2f}x")
        rows.append(
            {
                "case": case,
                "B": args.batch,
                "S": length,
                "W": args.width,
                "threads": args.threads,
                "contestant": name,
                "ms": f"{median * 1e3:.2f}",
                "over seqmix.scan": f"{median / ours:.3f}",
                "turns": len(times),
            }
        )
    return rows


def turns(works: dict[str, Work], rounds: int, patience: float) -> dict[str, list[float]]:
    """Seconds of the turns that count: the first one does not, unless it takes too long.

    Every other round goes backwards, so that nobody has always the same one before it.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    slow: set[str] = set()
    for turn in range(rounds + 1):
        for name, work in list(works.items())[:: -1 if turn % 2 else 1]:
            if name in slow:
                continue
            started = time.perf_counter()
            work()
            taken = time.perf_counter() - started
            if turn or taken > patience:
                seconds[name].append(taken)
            if taken > patience:
                slow.add(name)
    return seconds


if __name__ == "__main__":
    main()
