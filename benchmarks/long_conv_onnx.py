"""Which ONNX form of a long convolution is fastest: every form, at every length, in turn.

The filter is as long as the sequence, lengths are free in the file, batch 1. ``native`` is what
the backend writes, ``conv`` a depthwise Conv with the reversed filter, ``four_step`` transforms
made of matrix products, ``fft`` ONNX's DFT, ``direct`` the matrix of all shifts; torch's own FFT
stands beside them. Errors are the largest against float64, relative to the largest output.

    python benchmarks/long_conv_onnx.py [--rounds 7] [--threads 1] [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from measuring import in_turn, write
from numpy.typing import NDArray

from seqmix.ops import long_conv
from seqmix.weights import Weights
from seqmix_ir.builder import Builder
from seqmix_ir.dims import dim
from seqmix_ir.graph import DimInfo, Graph, Value
from seqmix_ir.ops import LongConv
from seqmix_ir.types import TensorType
from seqmix_onnxruntime.form import Form
from seqmix_onnxruntime.interface import Interface
from seqmix_onnxruntime.model_file import make_model

LENGTHS = (64, 512, 2048, 8192)
WIDTHS = (16, 64)
STYLES = ("native", "conv", "four_step", "fft", "direct")
LARGEST = 2_500_000_000
"""Bytes of the matrix of all shifts from which on ``direct`` is left out."""
Contestant = Callable[[], NDArray[Any]]


def main() -> None:
    """Measure, print a table, and write it as CSV."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = [row for D in WIDTHS for row in measure_width(D, args.rounds, args.threads)]
    write(rows, args.out / "long_conv_onnx.csv")


def measure_width(D: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    """A row per length and form."""
    sessions = {style: session(style_model(D, style), threads) for style in STYLES}
    rng = np.random.default_rng(0)
    rows = []
    for S in LENGTHS:
        x, filter = (rng.standard_normal((1, D, S)), rng.standard_normal((D, S)))
        feeds = {"x": x.astype(np.float32), "filter": filter.astype(np.float32)}
        contestants: dict[str, Contestant] = {
            name: partial(run, one, feeds)
            for name, one in sessions.items()
            if name != "direct" or D * S * S * 20 < LARGEST
        }
        contestants["torch"] = partial(run_torch, feeds)
        rows += summarize(D, S, feeds, contestants, rounds if S < 8192 else min(rounds, 3))
    return rows


def summarize(
    D: int, S: int, feeds: dict[str, Any], contestants: dict[str, Contestant], rounds: int
) -> list[dict[str, Any]]:
    """Medians over rounds in which all take their turn, so that a busy machine hits all alike."""
    exact = run_torch({name: array.astype(np.float64) for name, array in feeds.items()})
    errors = {n: np.abs(f() - exact).max() / np.abs(exact).max() for n, f in contestants.items()}
    rows = []
    for name, taken in in_turn(contestants, rounds).items():
        median, best = statistics.median(taken) * 1e3, min(taken) * 1e3
        row = {"D": D, "S": S, "form": name, "median_ms": f"{median:.3f}", "min_ms": f"{best:.3f}"}
        rows.append({**row, "relative_error": f"{errors[name]:.1e}"})
        print(*rows[-1].values(), sep="\t", flush=True)
    return rows


def run(one: onnxruntime.InferenceSession, feeds: dict[str, Any]) -> NDArray[Any]:
    """The only output."""
    result: NDArray[Any] = one.run(None, feeds)[0]
    return result


def run_torch(feeds: dict[str, Any]) -> NDArray[Any]:
    """The op that training uses."""
    with torch.no_grad():
        y = long_conv(torch.from_numpy(feeds["x"]), torch.from_numpy(feeds["filter"]))
    result: NDArray[Any] = y.numpy()
    return result


def session(model: onnx.ModelProto, threads: int) -> onnxruntime.InferenceSession:
    """A session on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers)


def style_model(D: int, style: str) -> onnx.ModelProto:
    """A decomposition, or the backend's own form, as a file with B and S free."""
    B, S = dim("B"), dim("S")
    params = [Value(TensorType("f32", (B, D, S)), "x"), Value(TensorType("f32", (D, S)), "filter")]
    whole = Builder()
    results = whole.emit(LongConv(), *params, None)
    b = whole
    if style != "native":
        b = Builder()
        results = LongConv().decompositions()[style](b, whole.ops[0])
    graph = Graph("main", b.block(params, results), ("y",), (DimInfo("B"), DimInfo("S")))
    made = make_model(graph, Interface.plain(graph), Weights({}), {}, Form())
    model = made.model
    for name, array in made.arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array(), name))
    return model


if __name__ == "__main__":
    main()
