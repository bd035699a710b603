"""``seqmix eval lm-eval``: a model on the tasks of the evaluation harness lm-eval."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["evaluate_lm_eval"]

INTERRUPTED = 130


def evaluate_lm_eval(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="What to load.")],
    tasks: Annotated[str, typer.Option(help="Names of tasks, with commas.")] = "",
    preset: Annotated[
        str | None, typer.Option(help="open-llm: the tasks that the YaRN paper reports.")
    ] = None,
    include_path: Annotated[
        list[Path] | None, typer.Option(help="A folder of task files; repeat for more.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The JSON file to write.")] = Path(
        "out/lm_eval/results.json"
    ),
    num_fewshot: Annotated[
        int | None, typer.Option(min=0, help="Solved examples; by default what the task says.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="The first so many questions of each task.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Requests that are read at a time.")] = 8,
    backend: Annotated[str, typer.Option("--backend", "-b", help="A backend, or auto.")] = "torch",
    rope: Annotated[
        str | None, typer.Option(help="Extend the context: yarn:2, ntk:4, .. or dynamic-yarn.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens that are read; by default the context.")
    ] = None,
    prefix_token: Annotated[
        int | None, typer.Option(min=0, help="The id before a text without context.")
    ] = None,
    share_contexts: Annotated[
        bool | None, typer.Option(help="Read the context of several choices once.")
    ] = None,
    chat: Annotated[bool, typer.Option(help="Wrap questions in the chat template.")] = False,
    cache: Annotated[
        Path | None, typer.Option(help="Keep answers here, so that a stopped run goes on.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the solved examples and of draws.")] = 0,
) -> int:
    """Run tasks of lm-eval (the Open LLM leaderboard's, one's own, thousands of others).

    Any model on any backend. Data sets come from the Hugging Face hub and are fetched at their
    first use; tasks of --include-path may read local files. Leaves one JSON file.
    """
    from seqmix.cli.loading import check_backend_name, compile_model, load_checkpoint, load_model
    from seqmix.errors import CheckpointError
    from seqmix_harness.language_model import make_language_model
    from seqmix_harness.run import run_tasks, show_table, write_results
    from seqmix_harness.tasks import Wanted, preset_tasks

    check_backend_name(backend)
    wanted = [Wanted(name, num_fewshot) for name in filter(None, tasks.split(","))]
    wanted += preset_tasks(preset) if preset else ()
    checkpoint = load_checkpoint(model, rope)
    if checkpoint.tokenizer is None:
        raise CheckpointError(
            f"{model}: has no tokenizer, so it cannot read a question; choose one that brings one"
        )
    loaded = load_model(checkpoint)
    language_model = make_language_model(
        loaded if backend == "torch" else compile_model(loaded, backend),
        checkpoint.tokenizer,
        batch=batch,
        max_length=max_length,
        prefix_token=prefix_token,
        share_contexts=share_contexts,
        seed=seed,
    )
    try:
        results = run_tasks(
            language_model,
            wanted,
            include_path or (),
            limit=limit,
            seed=seed,
            cache=cache,
            chat=chat,
        )
    except KeyboardInterrupt:
        sys.stderr.write("interrupted" + ("; the same command goes on\n" if cache else "\n"))
        return INTERRUPTED
    results["model"] = {"source": model, "backend": backend, "rope": rope, "seed": seed}
    write_results(results, out)
    print(show_table(results))
    return 0
