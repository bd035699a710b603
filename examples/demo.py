"""A real model, from checkpoint to text: load, extend with YaRN, explain, export, check, run.

Usage: python examples/demo.py [MODEL] [--rope yarn:2] [--out out/smollm2]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from rich.console import Console
from rich.table import Table

import seqmix
from seqmix.backend import Executable
from seqmix.checkpoint import Checkpoint, resolve
from seqmix.extend import extend
from seqmix.generate import generate
from seqmix.model import Model
from seqmix.progress import progress
from seqmix.testing import check_model

PROMPT = "The most important rivers of Europe are"
LENGTHS = (1, 37, 200)
NEW_TOKENS = 48

console = Console()


def main() -> None:
    """Walk through the house once, and say what is seen on the way."""
    args = parse_arguments()
    console.rule(f"1. load {args.model}")
    with progress("reading the checkpoint"):
        original = resolve(args.model)
    checkpoint = original.with_config(extend(original.config, args.rope))
    with progress("building the torch model"):
        model = Model.from_checkpoint(checkpoint)
    card(original.config.context_length, model, args.rope)

    console.rule("2. compile for onnxruntime")
    with progress("capturing, lowering and starting a session"):
        executable = seqmix.compile(model, backend="onnxruntime")
    explain(executable)

    console.rule(f"3. export to {args.out}")
    export(executable, args.out)

    console.rule("4. check against torch at lengths that were not traced")
    agree = check(model, executable)

    console.rule("5. a continuation, from ONNX Runtime")
    speeds = {"onnxruntime": stream(executable, checkpoint, show=True)}
    speeds["torch"] = stream(model, checkpoint, show=False)
    console.print("tokens per second: " + ", ".join(f"{k} {v:.1f}" for k, v in speeds.items()))
    sys.exit(0 if agree else 1)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--rope", default="yarn:2")
    parser.add_argument("--out", type=Path, default=Path("out/smollm2"))
    return parser.parse_args()


def card(before: int, model: Model, rope: str) -> None:
    """Print what the model is."""
    table = Table(show_header=False, box=None)
    table.add_row("layers", str(len(model.state_specs())))
    table.add_row("parameters", f"{model.parameter_count():,}")
    table.add_row("context", f"{before} -> {model.config.context_length} ({rope})")
    table.add_row("width, vocabulary", f"{model.config.width}, {model.config.vocab_size}")
    console.print(table)


def explain(executable: Executable) -> None:
    """Print which ops the backend runs natively, and which it was given in simpler ops."""
    report = executable.report
    console.print("native: " + ", ".join(f"{k} x{n}" for k, n in sorted(report.native.items())))
    lowered = ", ".join(f"{k} ({how})" for k, how in sorted(report.decomposed.items()))
    console.print(f"decomposed: {lowered or 'nothing'}")


def export(executable: Executable, folder: Path) -> None:
    """Write the ONNX folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    with progress("writing"):
        executable.save(folder)
    for file in sorted(folder.iterdir()):
        console.print(f"  {file}  {file.stat().st_size / 1e6:.1f} MB")


def check(model: Model, executable: Executable) -> bool:
    """Compare prefill, prefill with a state, and a step with torch; print the errors."""
    with progress("running both"):
        report = check_model(model, {"onnxruntime": executable}, lengths=LENGTHS)
    console.print(report.table())
    return report.ok


def stream(runner: Model | Executable, checkpoint: Checkpoint, *, show: bool) -> float:
    """Continue the prompt greedily; return the tokens per second after the first."""
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        console.print("the checkpoint has no tokenizer")
        return 0.0
    decoder, count, started = tokenizer.decoder(), 0, time.perf_counter()
    if show:
        console.print(PROMPT, end="", style="bold")
    with torch.inference_mode():
        for token in generate(runner, tokenizer.encode(PROMPT), max_new_tokens=NEW_TOKENS):
            count += 1
            started = time.perf_counter() if count == 1 else started
            if show:
                console.print(decoder.push(token), end="", markup=False, highlight=False)
    if show:
        console.print()
    return (count - 1) / (time.perf_counter() - started) if count > 1 else 0.0


if __name__ == "__main__":
    main()
