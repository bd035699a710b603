"""Attention against a gated convolution on a book: how much of the gap is recall.

Usage: python examples/recall_gap.py [--minutes 10] [--text FILE] [--out out/recall_gap_book]

Two models of one width, one depth and about as many weights are trained on a book, in tokens of a
byte-level BPE: a bigram of such tokens is a piece of a word or a name, so that seeing it again says
something, which a bigram of bytes hardly does. Then the recall gap is measured on the end of the
book, as ``seqmix eval recall-gap`` does it. Interrupt it when you like: the next call goes on.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from book import find_book, read_text, split_book
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from seqmix.config import Kind, ModelConfig
from seqmix.errors import SeqmixError
from seqmix.model import Model
from seqmix.progress import progress
from seqmix.storage import save_model
from seqmix.training.plan import Plan, Training, read_training
from seqmix.training.trainer import Trainer
from seqmix.whole_file import write_whole
from seqmix_recall.gap_report import GapReport, table_lines
from seqmix_recall.gap_run import GapRequest, run_gap
from seqmix_recall.gap_slices import HITS, OTHERS

ATTENTION, BASE_CONV = "attention", "base_conv"
HEAD = 16
SHORT_TAPS = 4
SEPARATOR = 0
"""The id behind a document, of a tokenizer that is trained."""
TIMED_STEPS = 12

console = Console()


def main() -> None:
    """Train both, compare, and say what came of it; an interruption ends with status 130."""
    args = parse_arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        run(args)
    except SeqmixError as error:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on")
        sys.exit(130)


def run(args: argparse.Namespace) -> GapReport:
    """The whole way from a book to the report."""
    console.rule("1. a book")
    train, held_out = write_book(args)

    console.rule("2. two models")
    trainings = plan_trainings(args, train, held_out)
    folders = [keep_training(training, args.out / name) for name, training in trainings.items()]

    console.rule("3. the recall gap")
    with progress("scoring the end of the book"):
        report = run_gap(
            GapRequest(
                str(folders[1]),
                str(folders[0]),
                [held_out],
                [train],
                args.out / "gap",
                length=args.length,
                threshold=args.threshold,
                seed=args.seed,
                names=(BASE_CONV, ATTENTION),
            )
        )
    console.print("\n".join(table_lines(report)), markup=False, highlight=False, soft_wrap=True)
    console.print(verdict(report), markup=False, soft_wrap=True)
    console.print(f"look at {args.out / 'gap' / 'recall_gap.html'}", markup=False)
    return report


def parse_arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--minutes", type=float, default=10.0, help="of both trainings; timed steps say how many")
    add("--steps", type=positive, help="of each training, instead of minutes")
    add("--text", type=Path, help="a text of your own; six tragedies of Shakespeare without it")
    add("--out", type=Path, default=Path("out/recall_gap_book"))
    add("--cache", type=Path, default=Path("out/books"), help="where the book is kept")
    add("--resume", action=argparse.BooleanOptionalAction, default=True)
    add("--seed", type=int, default=0)
    add("--vocabulary", type=positive, default=1024, help="tokens of the BPE")
    add("--width", type=positive, default=64, help=f"a multiple of {HEAD}")
    add("--layers", type=positive, default=2)
    add("--length", type=positive, default=256, help="tokens of a row")
    add("--batch", type=positive, default=8)
    add("--rate", type=float, default=5e-3)
    add("--threshold", type=positive, default=64, help="AR hits are rarer in the training text")
    add("--held-out", type=positive, default=65536, help="bytes at the end of the text")
    add("--threads", type=positive, help="of torch")
    args = parser.parse_args(given)
    if args.minutes <= 0 or args.rate <= 0:
        parser.error("--minutes and --rate must be above 0")
    if args.width % HEAD:
        parser.error(f"--width must be a multiple of {HEAD}, found {args.width}")
    return args


def positive(text: str) -> int:
    """A number of the command line that must be at least 1."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, found {text}")
    return number


def write_book(args: argparse.Namespace) -> tuple[Path, Path]:
    """The book as two files, what is trained on and what is held out."""
    text = find_book(args.cache) if args.text is None else read_text(args.text)
    paths = args.out / "train.txt", args.out / "held_out.txt"
    for path, part in zip(paths, split_book(text, args.held_out), strict=True):
        if not path.is_file() or path.read_bytes() != part:
            write_whole(path, part)
        console.print(f"{len(part):,} bytes in {path}", markup=False)
    return paths


def plan_trainings(args: argparse.Namespace, train: Path, held_out: Path) -> dict[str, Training]:
    """Both trainings: as they were begun, or planned now for the minutes that there are."""
    kept = {name: args.out / name / "training.json" for name in (ATTENTION, BASE_CONV)}
    if args.resume and all(path.is_file() for path in kept.values()):
        console.print("going on with the trainings of this folder; --no-resume begins anew")
        return {name: read_training(path) for name, path in kept.items()}
    models = {name: make_model(args, name) for name in kept}
    task = Kind(
        kind="text",
        files=[str(train)],
        held_out_files=[str(held_out)],
        length=args.length,
        tokenizer="bpe",
        vocabulary=args.vocabulary,
        cache=str(args.out / "tokens"),
    )
    steps = args.steps
    if steps is None:
        with progress("timing a few steps"):
            seconds = [
                step_seconds(Training(model=m, task=task, training=make_plan(args, TIMED_STEPS)))
                for m in models.values()
            ]
        steps = max(1, round(60 * args.minutes / sum(seconds)))
    plan = make_plan(args, steps)
    trainings = {n: Training(model=m, task=task, training=plan) for n, m in models.items()}
    for name, path in kept.items():
        (path.parent / "training.ckpt").unlink(missing_ok=True)
        write_whole(path, trainings[name].model_dump_json(indent=2) + "\n")
    return trainings


def make_plan(args: argparse.Namespace, steps: int) -> Plan:
    """So many steps; what happens now and then happens as often in all of them."""
    return Plan(
        steps=steps,
        batch=args.batch,
        rate=args.rate,
        warm_up=max(1, steps // 20),
        seed=args.seed,
        log_every=max(1, steps // 100),
        test_every=max(1, steps // 10),
        save_every=max(1, steps // 20),
    )


def make_model(args: argparse.Namespace, name: str) -> ModelConfig:
    """One of the two; the feed-forward of the convolutions is widened to the weights of the other.

    Attention is rotary. The convolutions are BaseConv with a short and a long filter in turns, as
    in the paper's experiments (Arora et al. 2023), the long one as long as a row.
    """
    attention = build_config(args, ATTENTION, 2 * args.width)
    if name == ATTENTION:
        return attention
    narrow, wide = (build_config(args, BASE_CONV, 2 * args.width + more) for more in (0, 1))
    wanted, found, step = (count(c) for c in (attention, narrow, wide))
    more = max(0, round((wanted - found) / (step - found)))
    return build_config(args, BASE_CONV, 2 * args.width + more)


def build_config(args: argparse.Namespace, name: str, hidden: int) -> ModelConfig:
    """A model whose feed-forward branches are so wide."""
    heads = args.width // HEAD
    mixers = {
        ATTENTION: [Kind(kind="attention", heads=heads, head_dim=HEAD)],
        BASE_CONV: [
            Kind(kind="base_conv", filter="short", taps=SHORT_TAPS),
            Kind(kind="base_conv", filter="explicit", taps=args.length),
        ],
    }[name]
    steps = [
        branch
        for layer in range(args.layers)
        for branch in (mixers[layer % len(mixers)], Kind(kind="swiglu", hidden=hidden))
    ]
    rotary = name == ATTENTION
    return ModelConfig(
        name=name,
        vocab_size=args.vocabulary,
        width=args.width,
        context_length=args.length,
        tie_embeddings=True,
        eos=[SEPARATOR],
        position=Kind(kind="rope") if rotary else None,
        head_dim=HEAD if rotary else None,
        blocks=[{"steps": steps}],
    )


def count(config: ModelConfig) -> int:
    """The weights of a model, without making them."""
    with torch.device("meta"):
        return Model(config).parameter_count()


def step_seconds(training: Training) -> float:
    """The median time of a few steps, after a first one, in a folder that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        trainer, ends = Trainer(training, Path(folder)), []
        trainer.run(lambda _: ends.append(time.perf_counter()))
        return median(b - a for a, b in pairwise(ends))


def keep_training(training: Training, folder: Path) -> Path:
    """Train to the end, from the last checkpoint on, and save the model with its tokenizer."""
    with progress(f"preparing {folder.name}"):
        trainer = Trainer(training, folder)
    name = folder.name
    console.print(
        f"{name}: {trainer.model.parameter_count():,} weights, {trainer.plan.steps:,} steps of "
        f"{trainer.plan.batch} rows"
    )
    with bar(trainer, name) as watch:
        trainer.run(watch)
    last = trainer.standing.rows[-1]
    console.print(f"{name}: held-out loss {last['held_out_loss']:.4f} nats per token")
    save_model(trainer.model, folder / "model")
    for file, content in trainer.task.files().items():
        (folder / "model" / file).write_bytes(content)
    return folder / "model"


@contextmanager
def bar(trainer: Trainer, name: str) -> Iterator[Callable[[Trainer], None]]:
    """A bar with the step."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as shown:
        row = shown.add_task(name, total=trainer.plan.steps, completed=trainer.standing.step)
        yield lambda now: shown.update(row, completed=now.standing.step)


def verdict(report: GapReport) -> str:
    """Whether the gap is larger on AR hits than elsewhere."""
    hits, others = report.gap.slice(HITS), report.gap.slice(OTHERS)
    if hits.difference is None or others.difference is None:
        return "there are no AR hits in the held-out text; give a longer one, or a higher threshold"
    larger = "larger" if hits.difference > others.difference else "NOT larger"
    return (
        f"the gap on AR hits, {hits.difference:+.3f} nats, is {larger} than elsewhere, "
        f"{others.difference:+.3f} nats"
    )


if __name__ == "__main__":
    main()
