"""A small xLSTM [7:1], from a book to text: train on a CPU, resume, export, continue a prompt.

Usage: python examples/xlstm_text.py [--minutes 5] [--text FILE] [--out out/xlstm_text]

Interrupt it when you like: the next call goes on from the checkpoint. The text is read as bytes,
in contiguous streams; the states of the model are carried from segment to segment, detached.
"""

from __future__ import annotations

import argparse
import codecs
import copy
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import FrameType

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from book import find_book, read_text, split_book
from curve import draw_curve, write_csv
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from text_training import Plan, Trainer, read_plan

import seqmix
from seqmix.backend import Executable
from seqmix.errors import SeqmixError
from seqmix.generate import generate
from seqmix.model import Model
from seqmix.progress import progress
from seqmix.storage import save_model
from seqmix_xlstm.families import xlstm_block_stack_config

BYTES = 256
RATIO = "7:1"
SAVE_EVERY = 30.0
TIMED_STEPS = 12
TEMPERATURE, TOP_K = 0.8, 40
GREEDY_BYTES = 64

console = Console()


def main() -> None:
    """Train, save, export, continue; an interrupted training ends with status 130."""
    args = parse_arguments()
    try:
        finished = run(args)
    except SeqmixError as error:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    sys.exit(0 if finished else 130)


def run(args: argparse.Namespace) -> bool:
    """The whole way; False when the training was interrupted."""
    console.rule("1. a book")
    text = find_book(args.cache) if args.text is None else read_text(args.text)
    train, held_out = split_book(text, args.held_out)
    console.print(f"{len(train):,} bytes to train on, the last {len(held_out):,} are held out")

    console.rule(f"2. train an xLSTM [{RATIO}]")
    trainer = prepare(args, train, held_out)
    finished = keep_training(trainer, args.out / "training.pt")
    report(trainer, args.out)
    if not finished:
        console.print(f"interrupted at step {trainer.step}; the same command goes on from there")
        return False

    console.rule("3. save and export")
    save_model(trainer.model, args.out / "model")
    executable = export(trainer.model, args.out / "onnx")

    console.rule("4. a continuation, from ONNX Runtime")
    continue_prompt(executable, args.prompt, args.length, args.seed)
    compare(trainer.model, executable, args.prompt)
    return True


def parse_arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--minutes", type=float, default=5.0, help="of training; a few timed steps say how many")
    add("--steps", type=positive, help="instead of minutes; repeatable bit by bit with --seed")
    add("--text", type=Path, help="a text of your own; six tragedies of Shakespeare without it")
    add("--out", type=Path, default=Path("out/xlstm_text"))
    add("--cache", type=Path, default=Path("out/books"), help="where the book is kept")
    add("--resume", action=argparse.BooleanOptionalAction, default=True)
    add("--seed", type=int, default=0)
    add("--width", type=positive, default=128)
    add("--blocks", type=positive, default=8, help="a multiple of 8")
    add(
        "--streams", type=positive, default=8, help="contiguous parts of the text read side by side"
    )
    add("--segment", type=positive, default=64, help="bytes of each before a step")
    add("--rate", type=float, default=3e-3, help="the peak of the learning rate")
    add("--held-out", type=positive, default=16384, help="bytes at the end of the text")
    add("--prompt", default="Enter Hamlet.\n\nHam.\n")
    add("--length", type=positive, default=400, help="bytes to write")
    add("--threads", type=positive, help="of torch")
    args = parser.parse_args(given)
    if not args.prompt:
        parser.error("--prompt is empty; the continuation needs at least one byte to start from")
    if args.minutes <= 0 or args.rate <= 0:
        parser.error("--minutes and --rate must be above 0")
    return args


def positive(text: str) -> int:
    """A number of the command line that must be at least 1."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, found {text}")
    return number


def prepare(args: argparse.Namespace, train: bytes, held_out: bytes) -> Trainer:
    """A trainer at step 0, or where the checkpoint of the folder left off."""
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    config = xlstm_block_stack_config(
        BYTES, args.width, args.blocks, ratio=RATIO, name="xlstm-text"
    )
    model = Model(config)
    console.print(f"{model.parameter_count():,} parameters, width {args.width}, vocabulary {BYTES}")
    path = args.out / "training.pt"
    resumes = args.resume and path.is_file()
    steps = args.steps or (read_plan(path).steps if resumes else None)
    if steps is None:
        with progress("timing a few steps"):
            steps = steps_in(args.minutes, model, make_plan(args, TIMED_STEPS), train)
    trainer = Trainer(model, make_plan(args, steps), train, held_out)
    console.print(f"{steps:,} steps of {args.streams} x {args.segment} bytes")
    if resumes:
        trainer.restore(path)
        after = "--no-resume trains anew" if trainer.done else "going on from there"
        console.print(f"{path} is at step {trainer.step} of {steps}; {after}")
    return trainer


def make_plan(args: argparse.Namespace, steps: int) -> Plan:
    """The plan of so many steps; what happens now and then happens as often in all of them."""
    return Plan(
        steps=steps,
        streams=args.streams,
        segment=args.segment,
        rate=args.rate,
        warm_up=max(1, steps // 20),
        seed=args.seed,
        log_every=math.ceil(steps / 100),
        validate_every=math.ceil(steps / 8),
    )


def steps_in(minutes: float, model: Model, plan: Plan, text: bytes) -> int:
    """How many steps fit, by the median time of a few on a copy of the model, after a first one."""
    trial = Trainer(copy.deepcopy(model), plan, text, text[: plan.segment + 1])
    ends = []
    while not trial.done:
        trial.advance()
        ends.append(trial.seconds)
    return max(1, round(60 * minutes / median(b - a for a, b in pairwise(ends))))


def keep_training(trainer: Trainer, path: Path) -> bool:
    """Train to the end, or until an interruption; either way the last step is in the checkpoint."""
    saved = time.monotonic()
    with interruption() as interrupted, bar(trainer) as show:
        while not trainer.done and not interrupted:
            trainer.advance()
            show(trainer)
            if time.monotonic() - saved > SAVE_EVERY:
                trainer.save(path)
                saved = time.monotonic()
    trainer.save(path)
    return trainer.done


@contextmanager
def interruption() -> Iterator[list[int]]:
    """A list that is no longer empty once Ctrl-C or SIGTERM came; the second time they act."""
    came: list[int] = []
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, note)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def bar(trainer: Trainer) -> Iterator[Callable[[Trainer], None]]:
    """A progress bar; where nobody watches, a line per validation instead."""
    watched = console.is_terminal
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[seen]}"))
    begun, before = trainer.tokens, trainer.seconds
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not watched) as shown:
        task = shown.add_task("", total=trainer.plan.steps, completed=trainer.step, seen="")

        def show(now: Trainer) -> None:
            speed = (now.tokens - begun) / (now.seconds - before)
            seen = f"{now.figures()}, {speed:,.0f} bytes/s"
            shown.update(task, completed=now.step, seen=seen)
            if not watched and now.just_validated:
                console.print(f"step {now.step}/{now.plan.steps}: {seen}")

        yield show


def report(trainer: Trainer, folder: Path) -> None:
    """Write the curve, and say where."""
    write_csv(trainer.curve, folder / "curve.csv")
    title = f"xLSTM [{RATIO}], {trainer.model.parameter_count():,} parameters, on a CPU"
    problem = draw_curve(trainer.curve, folder / "curve.png", title)
    console.print(f"{trainer.tokens:,} bytes in {trainer.seconds:.0f} s; {trainer.figures()}")
    console.print(f"the curve: {folder / 'curve.csv'}" + ("" if problem else " and curve.png"))
    if problem:
        console.print(problem, style="yellow", markup=False)


def export(model: Model, folder: Path) -> Executable:
    """Compile, write the ONNX folder anew, and read it back: what runs below is what was saved."""
    with progress("capturing, lowering and writing"):
        executable = seqmix.compile(model, backend="onnxruntime")
        shutil.rmtree(folder, ignore_errors=True)
        executable.save(folder)
        loaded = seqmix.load(folder)
    for file in sorted(folder.iterdir()):
        console.print(f"  {file}  {file.stat().st_size / 1e6:.1f} MB")
    return loaded


def continue_prompt(executable: Executable, prompt: str, length: int, seed: int) -> None:
    """Show the text as it is drawn, byte by byte."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    console.print(prompt, end="", style="bold", markup=False, highlight=False)
    started = time.perf_counter()
    ids = list(prompt.encode())
    for token in generate(
        executable, ids, max_new_tokens=length, temperature=TEMPERATURE, top_k=TOP_K, seed=seed
    ):
        console.print(decoder.decode(bytes([token])), end="", markup=False, highlight=False)
    console.print(decoder.decode(b"", final=True), markup=False, highlight=False)
    speed = length / (time.perf_counter() - started)
    console.print(
        f"({speed:.0f} bytes/s, temperature {TEMPERATURE}, top_k {TOP_K}, seed {seed})", style="dim"
    )


def compare(model: Model, executable: Executable, prompt: str) -> None:
    """Say whether torch and ONNX Runtime continue the prompt alike where nothing is drawn."""
    ids = list(prompt.encode())
    torch_bytes = list(generate(model, ids, max_new_tokens=GREEDY_BYTES))
    same = torch_bytes == list(generate(executable, ids, max_new_tokens=GREEDY_BYTES))
    verdict = "the same" if same else "NOT the same"
    console.print(f"greedily, torch and ONNX Runtime write {verdict} {GREEDY_BYTES} bytes:")
    console.print(repr(bytes(torch_bytes).decode("utf-8", "replace")), markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
