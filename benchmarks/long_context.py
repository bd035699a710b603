"""Perplexity of SmolLM2 on a novel against the length of the context, by position encoding.

Truncated documents, as in the tables of the YaRN paper: each length reads the first so many tokens
of three stretches of the novel, and of one of them above 8192 tokens. No fine-tuning. The model was
trained with 8192 tokens. Kill it at any time: the same command goes on, window by window.

    python benchmarks/long_context.py [--threads 1] [--out out/long_context]

writes ``benchmarks/results/long_context.csv`` and ``.png``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from novel import NOVEL, find_novel

from seqmix.errors import IRError, SeqmixError

METHODS = "none,linear:2,ntk:2,ntk-by-parts:2,yarn:2,dynamic-yarn"
LENGTHS = "2048,4096,8192,12288,16384"
COUNTS = "3,3,3,1,1"
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measure what is not yet measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--text", type=Path, help="another text than the novel")
    parser.add_argument("--deb", type=Path, help="the novel's package, where it cannot be fetched")
    parser.add_argument("--rope", default=METHODS)
    parser.add_argument("--lengths", default=LENGTHS)
    parser.add_argument("--windows", default=COUNTS, help="how many stretches, for each length")
    parser.add_argument("--chunk", type=int, default=512, help="tokens that are read at once")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0 for its own choice")
    parser.add_argument("--out", type=Path, default=Path("out/long_context"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="where CSV and plot go")
    args = parser.parse_args()
    try:
        run(args)
    except (SeqmixError, IRError) as error:
        sys.exit(f"error: {error}")


def run(args: argparse.Namespace) -> None:
    """Documents, passes, table, plot."""
    import torch

    from seqmix.plots import check_plots
    from seqmix_longcontext.bars import bar
    from seqmix_longcontext.methods import parse_methods
    from seqmix_longcontext.perplexity import measure_perplexity
    from seqmix_longcontext.plan import Plan, read_documents
    from seqmix_longcontext.plots import plot_perplexity
    from seqmix_longcontext.subject import Subject
    from seqmix_longcontext.tables import show_table, write_table

    check_plots()
    if args.threads:
        torch.set_num_threads(args.threads)
    lengths, counts = numbers(args.lengths), numbers(args.windows)
    text = args.text or find_novel(NOVEL, args.deb)
    subject = Subject.read(args.model)
    config = subject.checkpoint.config
    methods = parse_methods(args.rope, config)
    documents = read_documents([text], subject.tokenizer, max(lengths), max(counts))
    plan = Plan(documents, lengths, counts if len(counts) > 1 else ())
    started = time.perf_counter()
    with bar(plan.tokens * len(methods), "tokens") as advance:
        found = measure_perplexity(subject, methods, plan, args.out, chunk=args.chunk, told=advance)
    write_table(found.rows, args.results / "long_context.csv")
    write_table(found.documents, args.results / "long_context_documents.csv")
    title = f"{args.model} on {text.stem}, truncated documents, no fine-tuning"
    plot_perplexity(found.rows, args.results / "long_context.png", title, config.context_length)
    table = {(row["method"], row["length"]): row["perplexity"] for row in found.rows}
    shown = [[m.name, *(f"{table[m.name, n]:.3f}" for n in lengths)] for m in methods]
    print(show_table(["method", *map(str, lengths)], shown))
    print(f"{time.perf_counter() - started:.0f} s")


def numbers(text: str) -> list[int]:
    """Numbers with commas between them."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        sys.exit(f"error: '{text}' should be whole numbers with commas between them")


if __name__ == "__main__":
    main()
