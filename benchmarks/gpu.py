"""The Triton kernels on a GPU: right or not, and how fast beside their peers and the device.

Every case is checked against float64 first, forward and backward, and then timed with its peers in
turn, medians of Triton's ``do_bench``. The device's own rates, measured in the same run, say what
there is to reach: bfloat16 products, and copying memory. Peers are torch itself, and
``flash-linear-attention`` and ``causal-conv1d`` where they are importable.

    python benchmarks/gpu.py [--only attention norm ..] [--tune] [--minutes 8]

writes ``benchmarks/results/gpu.csv`` and ``.png``; exits with 1 when a kernel is wrong. Cases that
no longer fit into the minutes are left out, and named. ``--small`` takes tiny sizes, which is how
the script itself is tried, in the interpreter (``TRITON_INTERPRET=1 .. --device cpu --small``).
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

from gpu_case import Case
from gpu_cases import cases
from measuring import write

RESULTS = Path(__file__).parent / "results"
NEAR = {"bfloat16": 3e-2, "float32": 1e-4}
"""How far a result may be from float64, relative to its largest entry."""


def main() -> int:
    """Check and measure; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], help="parts of cases' names")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--tune", action="store_true", help="measure configurations of kernels")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.tune:
        os.environ["SEQMIX_TRITON_TUNE"] = "1"
    from seqmix_triton.backend import TritonBackend

    known = TritonBackend().probe()
    if args.device not in known.devices:
        sys.exit(f"error: {known.reason or f'there is no device {args.device} for Triton here'}")
    rows = measured(args)
    write(rows, args.results / "gpu.csv")
    if not args.small:
        plot(rows, args.results / "gpu.png")
    return 1 if any(row["right"] == "no" for row in rows) else 0


def measured(args: argparse.Namespace) -> list[dict[str, object]]:
    """A row for each contestant of each case, and direction."""
    ends = time.monotonic() + 60 * args.minutes
    timer = device_timer if args.device == "cuda" else wall_timer
    limits = device_rates(args.device, args.small, timer)
    print("  ".join(f"{name} {rate:.0f}" for name, rate in limits.items()), flush=True)
    rows: list[dict[str, object]] = []
    for case in cases(args.device, args.small):
        if args.only and not any(part in case.name for part in args.only):
            continue
        if time.monotonic() > ends:
            print(f"no time left for {case.name}")
            continue
        for row in of_case(case, limits, timer):
            rows.append(row)
            print("  ".join(f"{value!s:>14}" for value in row.values()), flush=True)
    return rows


def of_case(
    case: Case, limits: dict[str, float], timer: Callable[[Callable[[], Any]], float]
) -> list[dict[str, object]]:
    """Ours first; a peer that does not run is left out with a word."""
    rows = []
    ours = {direction: 0.0 for direction in ("forward", "backward")}
    for name, run in {"seqmix": case.ours, **case.peers}.items():
        try:
            error = case.error(run)
            times = {"forward": timer(case.forward(run))}
            times |= {"backward": timer(case.backward(run))} if case.trains else {}
        except (AttributeError, ImportError, RuntimeError, ValueError, TypeError) as problem:
            print(f"{case.name}: {name} does not run: {(str(problem) or repr(problem))[:200]}")
            continue
        ours = times if name == "seqmix" else ours
        right = "yes" if error < NEAR[case.dtype] else "no" if name == "seqmix" else "far"
        rows += [
            row_of(case, name, direction, ms, ours[direction], limits)
            | {"error": f"{error:.1e}", "right": right}
            for direction, ms in times.items()
        ]
    return rows


def row_of(
    case: Case, name: str, direction: str, ms: float, ours: float, limits: dict[str, float]
) -> dict[str, object]:
    """Rates are those that the case needs at least, whoever computes it in whatever way."""
    work = 2.5 if direction == "backward" and case.flops else 2 if direction == "backward" else 1
    flops, moved = case.flops * work / ms / 1e9, case.bytes * work / ms / 1e6
    return {
        "case": case.name,
        "direction": direction,
        "by": name,
        "ms": f"{ms:.4f}",
        "time_to_ours": f"{ms / ours:.2f}" if ours else "",
        "tflops": f"{flops:.1f}",
        "of_products": f"{flops / limits['tflops']:.2f}",
        "gbytes": f"{moved:.0f}",
        "of_memory": f"{moved / limits['gbytes']:.2f}",
    }


def device_rates(
    device: str, small: bool, timer: Callable[[Callable[[], Any]], float]
) -> dict[str, float]:
    """bfloat16 TFLOP/s of a large product, and GB/s of a large copy, read and written."""
    import torch

    side = 64 if small else 8192
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    products = 2 * side**3 / timer(lambda: a @ b) / 1e9
    source = torch.empty(1 << (12 if small else 30), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    copied = 2 * source.numel() / timer(lambda: target.copy_(source)) / 1e6
    return {"tflops": products, "gbytes": copied}


def device_timer(work: Callable[[], Any]) -> float:
    """Milliseconds on the device, the median."""
    from triton.testing import do_bench

    return float(do_bench(work, warmup=25, rep=150, return_mode="median"))


def wall_timer(work: Callable[[], Any]) -> float:
    """Milliseconds by the clock, where there is no device."""
    times = []
    for _ in range(2):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1e3 * statistics.median(times)


def plot(rows: list[dict[str, object]], path: Path) -> None:
    """Bars: the time of every contestant, relative to ours."""
    from seqmix.plots import check_plots, new_figure, save_figure

    check_plots()
    labels = [f"{r['case']}, {r['direction']}: {r['by']}" for r in rows]
    figure, axes = new_figure(9, 1 + 0.22 * len(rows))
    colours = ["C0" if r["by"] == "seqmix" else "C7" for r in rows]
    axes.barh(labels, [float(str(r["time_to_ours"])) for r in rows], color=colours)
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("time, relative to seqmix's kernel")
    save_figure(figure, path)


if __name__ == "__main__":
    sys.exit(main())
