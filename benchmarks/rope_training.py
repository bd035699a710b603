"""A tiny RoPE model trained at 128 bytes, read at 256 and 512, and fine-tuned there.

What the YaRN paper shows of Llama, in minutes on a CPU: without fine-tuning the perplexity beyond
the trained context by position encoding, and then how fast PI and YaRN, stretched four times, learn
rows of 512 bytes (loss curves). Model and text are the same everywhere; the text that is measured
on is held out. Kill it at any time: the same command goes on.

    python benchmarks/rope_training.py [--steps 1000] [--threads 1] [--out out/rope_training]

writes ``benchmarks/results/rope_training.csv``, ``rope_training_curves.csv`` and ``.png``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from novel import NOVEL, find_novel

from seqmix.errors import IRError, SeqmixError

TRAINED = 128
LENGTHS = (128, 256, 512)
KINDS = ("linear", "ntk", "ntk-by-parts", "yarn")
DYNAMIC = ("dynamic-linear", "dynamic-ntk", "dynamic-ntk-by-parts", "dynamic-yarn")
METHODS = ",".join(["none", *(f"{kind}:{s}" for s in (2, 4) for kind in KINDS), *DYNAMIC])
TUNED = ("linear:4", "yarn:4")
BASE = 500.0
"""The slowest pair turns once in 17 contexts; in Llama, of 2048 tokens and base 10000, in 27."""
HELD_OUT = 40_000
DOCUMENTS = 32
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Do what is not yet done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000, help="of the training from scratch")
    parser.add_argument("--tune-steps", type=int, default=50)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--tune-rate", type=float, default=3e-4)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--text", type=Path, help="another book than the novel")
    parser.add_argument("--out", type=Path, default=Path("out/rope_training"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    try:
        run(args)
    except (SeqmixError, IRError) as error:
        sys.exit(f"error: {error}")


def run(args: argparse.Namespace) -> None:
    """Train, measure, fine-tune, measure again, draw."""
    import torch

    from seqmix.plots import check_plots
    from seqmix_longcontext.tables import pivot, show_table, write_table

    check_plots()
    if args.threads:
        torch.set_num_threads(args.threads)
    book, rest = split(args.text or find_novel(NOVEL), args.out)
    model = trained(args, book, rest)
    rows = measured(model, METHODS, rest, args.out, "0")
    curves: list[dict[str, Any]] = []
    for method in TUNED:
        tuned, curve = fine_tuned(model, method, args, book, rest)
        curves += [{"method": method, **row} for row in curve]
        rows += measured(tuned, "none", rest, args.out, str(args.tune_steps), method)
    write_table(rows, args.results / "rope_training.csv")
    write_table(curves, args.results / "rope_training_curves.csv")
    draw(rows, curves, args.results / "rope_training.png")
    for steps in dict.fromkeys(row["tuned_steps"] for row in rows):
        own = [row for row in rows if row["tuned_steps"] == steps]
        print(f"after {steps} steps of fine-tuning")
        print(show_table(*pivot(own, "method", "length", "perplexity")))
    ends = [[m, *ends_of([c for c in curves if c["method"] == m])] for m in TUNED]
    print(show_table(["fine-tuning", "first 10", "last 10", "held out"], ends))


def split(text: Path, out: Path) -> tuple[Path, Path]:
    """Files with what is trained on, and with the end, which is held out."""
    data = text.read_bytes()
    out.mkdir(parents=True, exist_ok=True)
    book, rest = out / "book.txt", out / "held_out.txt"
    book.write_bytes(data[:-HELD_OUT])
    rest.write_bytes(data[-HELD_OUT:])
    return book, rest


def trained(args: argparse.Namespace, book: Path, rest: Path) -> Any:
    """The model, from scratch on rows of 128 bytes."""
    from seqmix.training.plan import Plan, Training
    from seqmix.training.trainer import Trainer
    from seqmix_longcontext.finetune import packed_text

    plan = Plan(
        steps=args.steps, batch=16, rate=args.rate, warm_up=100, test_every=250, save_every=250
    )
    training = Training(
        model=tiny(), task=packed_text([book], TRAINED, **held(rest)), training=plan
    )
    trainer = Trainer(training, args.out / "scratch")
    with shown(trainer, "training") as watch:
        trainer.run(watch)
    return trainer.model.eval().requires_grad_(False)


def tiny() -> Any:
    """Four layers of width 96 over bytes: 0.5 million weights."""
    from seqmix.config import ModelConfig

    attention = {"kind": "attention", "heads": 3, "head_dim": 32}
    return ModelConfig.model_validate(
        {
            "name": "tiny",
            "vocab_size": 256,
            "width": 96,
            "context_length": TRAINED,
            "head_dim": 32,
            "position": {"kind": "rope", "theta": BASE},
            "blocks": [{"repeat": 4, "steps": [attention, {"kind": "swiglu", "hidden": 256}]}],
            "tie_embeddings": True,
        }
    )


def held(rest: Path) -> dict[str, Any]:
    """Options of the task: what to test on, and where tokens are kept."""
    return {"held_out_files": [str(rest)], "cache": str(rest.parent / "tokens")}


def measured(
    model: Any, methods: str, rest: Path, out: Path, steps: str, name: str = ""
) -> list[dict[str, Any]]:
    """Perplexity per byte of the held-out text at every length."""
    from seqmix_longcontext.methods import parse_methods
    from seqmix_longcontext.perplexity import measure_perplexity
    from seqmix_longcontext.plan import Plan
    from seqmix_longcontext.subject import Subject
    from seqmix_longcontext.windows import cut_documents

    documents = cut_documents(rest.name, list(rest.read_bytes()), DOCUMENTS, max(LENGTHS))
    plan = Plan(documents, LENGTHS)
    found = measure_perplexity(
        Subject.of(model), parse_methods(methods, model.config), plan, out / f"measured_{steps}"
    )
    return [{"tuned_steps": steps, **row, "method": name or row["method"]} for row in found.rows]


def fine_tuned(
    model: Any, method: str, args: argparse.Namespace, book: Path, rest: Path
) -> tuple[Any, list[dict[str, Any]]]:
    """The model after fine-tuning at the longest length, and its losses step by step."""
    from seqmix.extend import extend
    from seqmix_longcontext.finetune import extension_plan, fine_tune, packed_text

    task = packed_text([book], max(LENGTHS), **held(rest))
    plan = extension_plan(
        args.tune_steps, 8, args.tune_rate, log_every=1, test_every=10, save_every=25
    )
    out = args.out / f"tuned_{method.replace(':', '_')}"
    trainer = fine_tune(extend(model, method), task, plan, out)
    curve = [
        {key: row[key] for key in ("step", "loss", "held_out_loss")}
        for row in trainer.standing.rows
    ]
    return trainer.model.eval().requires_grad_(False), curve


def shown(trainer: Any, what: str) -> Any:
    """The trainer's steps on a bar."""
    from contextlib import contextmanager

    from seqmix_longcontext.bars import bar

    @contextmanager
    def watching() -> Any:
        with bar(trainer.plan.steps, "steps") as advance:
            advance(what, trainer.standing.step)
            yield lambda now: advance(what, 1)

    return watching()


def ends_of(curve: list[dict[str, Any]]) -> list[float]:
    """Mean loss of the first and of the last ten steps, and the last held-out loss."""
    losses = [row["loss"] for row in curve]
    tested = [row["held_out_loss"] for row in curve if row["held_out_loss"] is not None]
    return [statistics.fmean(losses[:10]), statistics.fmean(losses[-10:]), tested[-1]]


def as_needed(kind: str, length: int) -> str:
    """The method whose fixed factor is just what a length needs."""
    if kind not in KINDS:
        return kind
    return "none" if length == TRAINED else f"{kind}:{length // TRAINED}"


def draw(rows: list[dict[str, Any]], curves: list[dict[str, Any]], path: Path) -> None:
    """Perplexity against length before fine-tuning, and the losses of fine-tuning.

    Fixed factors are those that the length needs.
    """
    from seqmix.plots import new_figure, save_figure

    figure = new_figure(11, 4.5)
    left, right = figure.subplots(1, 2)
    before = {
        (row["method"], row["length"]): row["perplexity"]
        for row in rows
        if row["tuned_steps"] == "0"
    }
    for number, kind in enumerate(("none", *KINDS, *DYNAMIC)):
        style = "--" if kind in DYNAMIC else "-"
        points = [before[as_needed(kind, length), length] for length in LENGTHS]
        left.plot(LENGTHS, points, style, marker="osD^vPX*d"[number], label=kind)
    left.set(xscale="log", yscale="log", xlabel="bytes of context", ylabel="perplexity per byte",
             title=f"No fine-tuning; factor = length / {TRAINED}")  # fmt: skip
    left.set_xticks(LENGTHS, LENGTHS)
    left.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter("{x:g}")
    for number, method in enumerate(dict.fromkeys(row["method"] for row in curves)):
        own = [row for row in curves if row["method"] == method]
        tested = [row for row in own if row["held_out_loss"] is not None]
        color = f"C{number}"
        right.plot([r["step"] for r in own], [r["loss"] for r in own], color=color, alpha=0.5)
        right.plot([r["step"] for r in tested], [r["held_out_loss"] for r in tested], "o-",
                   color=color, label=f"{method}, held out")  # fmt: skip
    right.set(xlabel="step", ylabel="nats per byte", title=f"Fine-tuning at {max(LENGTHS)}")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    save_figure(figure, path)


if __name__ == "__main__":
    main()
