"""Whether dynamic scaling with a cache is right: a novel, decoded beyond the trained context.

SmolLM2 reads 8192 tokens, its trained context, and then goes on to 10240 in pieces of 256 tokens.
The perplexity of these last tokens tells a right cache from a wrong one. Keys are cached before
their rotation (YaRN, section 3.4), and turn anew as the scale grows. The usual mistake, to cache
them after it, is measured as well: it leaves old keys at old scales, and is worse than no scaling.

    python benchmarks/dynamic_cache.py [--threads 1] [--out out/dynamic_cache]

writes ``benchmarks/results/dynamic_cache.csv``; exits with 1 when a dynamic one is not below 35.
Kill it at any time: the same command goes on, method by method.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from novel import NOVEL, find_novel

from seqmix.errors import IRError, SeqmixError

PREFILL, LAST, PIECE = 8192, 10240, 256
LIMIT = 35.0
SCALINGS = ("dynamic-ntk", "dynamic-yarn")
METHODS = (
    ("none", False),
    ("yarn:2", False),
    *((f"{scaling}+granularity={PIECE}", False) for scaling in SCALINGS),
    *((f"{scaling}+mode=per_window", True) for scaling in SCALINGS),
    *((scaling, False) for scaling in SCALINGS),
)
"""Encodings, and whether keys are cached after their rotation. The slowest come last: their keys
turn anew for every single query, otherwise for every piece."""
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Measure what is not yet measured; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--text", type=Path, help="another text than the novel")
    parser.add_argument("--prefill", type=int, default=PREFILL)
    parser.add_argument("--last", type=int, default=LAST)
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0 for its own choice")
    parser.add_argument("--out", type=Path, default=Path("out/dynamic_cache"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    try:
        return run(args)
    except (SeqmixError, IRError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def run(args: argparse.Namespace) -> int:
    """Every method in turn; the table grows."""
    import torch

    from seqmix_longcontext.bars import bar
    from seqmix_longcontext.subject import Subject
    from seqmix_longcontext.tables import show_table, write_table
    from seqmix_longcontext.windows import cut_documents

    if args.threads:
        torch.set_num_threads(args.threads)
    subject = Subject.read(args.model)
    text = args.text or find_novel(NOVEL)
    ids = subject.tokenizer.encode(text.read_text(encoding="utf-8"))
    (document,) = cut_documents(str(text), ids, 1, args.last)
    rows: list[dict[str, Any]] = []
    with bar(args.last * len(METHODS), "tokens") as told:
        for name, mistaken in METHODS:
            rows.append(measured(subject, name, mistaken, document.ids, args, told))
            write_table(rows, args.results / "dynamic_cache.csv")
    print(show_table(list(rows[0]), [list(row.values()) for row in rows]))
    bad = [row for row in rows if is_too_high(row)]
    for row in bad:
        print(f"{row['method']}: perplexity {row['perplexity']:.2f} is not below {LIMIT:g}")
    return 1 if bad else 0


def measured(
    subject: Any,
    name: str,
    mistaken: bool,
    ids: Sequence[int],
    args: argparse.Namespace,
    told: Any,
) -> dict[str, Any]:
    """The row of a method, from the file where it is kept, or by reading."""
    import numpy as np

    from seqmix_longcontext.kept import Kept
    from seqmix_longcontext.partial import Partial
    from seqmix_longcontext.windows import score

    kept = Kept(args.out)
    about = {
        "weights": subject.identity,
        "method": name,
        "keys": "rotated" if mistaken else "as the encoding says",
        "ids": hashlib.sha256(repr(list(ids)).encode()).hexdigest(),
        "prefill": args.prefill,
    }
    label = f"{name}, keys cached after rotation" if mistaken else name
    found = kept.get(about)
    if found is None:
        part = Partial(kept.path(about).with_suffix(".part"))
        watch = partial(told, label)
        found = read(subject, name, mistaken, ids, prefill=args.prefill, watch=watch, partial=part)
        kept.put(about, found)
        part.remove()
    else:
        told(label, len(ids))
    losses = np.asarray(found["losses"])
    half = len(losses) // 2
    return {
        "method": name,
        "cached": "rotated" if mistaken or name in ("none", "yarn:2") else "unrotated",
        "perplexity": score([losses]).perplexity,
        "first_half": score([losses[:half]]).perplexity,
        "second_half": score([losses[half:]]).perplexity,
        "tokens": len(losses),
        "seconds": found["seconds"],
    }


def read(
    subject: Any, name: str, mistaken: bool, ids: Sequence[int], prefill: int, **options: Any
) -> dict[str, Any]:
    """The losses behind the prefill, in pieces."""
    from seqmix_longcontext.methods import parse_method
    from seqmix_longcontext.reading import token_losses

    model = subject.runner(parse_method(name))
    if mistaken:
        # What others do: with the scale of the piece, keys are turned once and kept so.
        model.position.caches_rotated_keys = True
    started = time.perf_counter()
    losses = token_losses(model, ids, chunk=PIECE, skip=prefill, pieces=True, **options)
    return {"losses": losses.tolist(), "seconds": round(time.perf_counter() - started, 1)}


def is_too_high(row: dict[str, Any]) -> bool:
    """Whether a right cache gives what only a wrong one should."""
    right = row["method"].startswith("dynamic") and row["cached"] == "unrotated"
    return bool(right and not row["perplexity"] < LIMIT)


if __name__ == "__main__":
    sys.exit(main())
