"""Time and memory of xLSTM models against the length of the prompt; both should be linear.

Every length runs in a process of its own, which reports the median time of a forward pass and by
how much its memory grew at most. Needs matplotlib for the plot (``pip install 'seqmix[plots]'``).

    python benchmarks/xlstm_scaling.py [--longest 16384] [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from measuring import peak, write

KINDS = ("large", "mlstm", "slstm")
WIDTH, BLOCKS, HEADS, VOCAB = 512, 6, 4, 256


def main() -> None:
    """Measure all kinds and lengths, or one of them when the parent asks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--longest", type=int, default=16384)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--one", nargs=2, metavar=("KIND", "LENGTH"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]))))
        return
    rows: list[dict[str, str]] = []
    for kind in args.kinds:
        rows += of_kind(kind, args.longest)
        write(rows, args.out / "xlstm_scaling.csv")
        plot(rows, args.out / "xlstm_scaling.png")


def of_kind(kind: str, longest: int) -> list[dict[str, str]]:
    """One row per length from 256, doubling."""
    rows, length = [], 256
    while length <= longest:
        command = [sys.executable, __file__, "--one", kind, str(length)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        row = {
            "kind": kind,
            "length": str(length),
            "seconds": f"{found['seconds']:.4f}",
            "us_per_token": f"{found['seconds'] / length * 1e6:.1f}",
            "megabytes": f"{found['megabytes']:.1f}",
        }
        print("  ".join(f"{value:>12}" for value in row.values()), flush=True)
        rows.append(row)
        length *= 2
    return rows


def measure(kind: str, length: int) -> dict[str, float]:
    """Seconds of a forward pass without gradients, and the growth of the process at its peak."""
    import torch

    from seqmix.model import Model
    from seqmix_xlstm.families import xlstm_block_stack_config, xlstm_large_config

    torch.manual_seed(0)
    config = (
        xlstm_large_config(VOCAB, WIDTH, BLOCKS, heads=HEADS)
        if kind == "large"
        else xlstm_block_stack_config(
            VOCAB, WIDTH, BLOCKS, heads=HEADS, slstm_at="all" if kind == "slstm" else ()
        )
    )
    model = Model(config).eval()
    ids = torch.randint(0, VOCAB, (1, length))
    positions = torch.arange(length).unsqueeze(0)
    seconds = []
    with torch.no_grad():
        model(ids[:, :64], positions[:, :64], None, 1)
        before = peak()
        for _ in range(3):
            started = time.perf_counter()
            model(ids, positions, None, 1)
            seconds.append(time.perf_counter() - started)
    return {"seconds": statistics.median(seconds), "megabytes": peak() - before}


def plot(rows: list[dict[str, str]], path: Path) -> None:
    """Two panels with logarithmic axes: a line of slope 1 is linear."""
    try:
        import matplotlib
    except ImportError:
        print("matplotlib is not installed: no plot (pip install 'seqmix[plots]')")
        return
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for panel, column, label in zip(
        panels, ("seconds", "megabytes"), ("seconds", "MiB at the peak"), strict=True
    ):
        for kind in dict.fromkeys(row["kind"] for row in rows):
            own = [row for row in rows if row["kind"] == kind]
            lengths = [int(row["length"]) for row in own]
            panel.loglog(lengths, [float(row[column]) for row in own], marker="o", label=kind)
        first, last = int(rows[0]["length"]), int(rows[-1]["length"])
        low = min(float(row[column]) for row in rows if float(row[column]) > 0)
        panel.loglog([first, last], [low, low * last / first], "k:", label="linear")
        panel.set_xlabel("tokens")
        panel.set_ylabel(label)
        panel.legend()
    figure.suptitle(f"Forward pass in torch: width {WIDTH}, {BLOCKS} blocks, {HEADS} heads")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
