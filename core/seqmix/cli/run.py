"""``seqmix run``: a prompt, continued; or several at once."""

from __future__ import annotations

import dataclasses
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqmix.cli.loading import check_backend_name, compile_model, load_checkpoint, load_model
from seqmix.errors import CheckpointError

if TYPE_CHECKING:
    from seqmix.backend import Executable
    from seqmix.checkpoint import Checkpoint, Tokenizer

__all__ = ["continue_text"]


def continue_text(
    source: str,
    prompts: Sequence[str],
    backend: str,
    rope: str | None,
    max_tokens: int,
    sampling: Mapping[str, Any],
    seed: int | None,
    chat: bool,
    save_kernels: Path | None = None,
) -> None:
    """Print the continuation of a prompt as it is made, and the speed on standard error.

    Several prompts are continued together and printed when all are done, each under a line with
    its text. ``sampling`` has the fields of :class:`seqmix.sample.Sampling`.
    """
    from seqmix.sample import Sampling

    # Checked before anything slow begins.
    options = dataclasses.asdict(Sampling(**sampling))
    check_backend_name(backend)
    checkpoint = load_checkpoint(source, rope)
    tokenizer = _tokenizer(checkpoint)
    ids = [tokenizer.encode(_asked(tokenizer, prompt, chat)) for prompt in prompts]
    _warn_of_length(checkpoint, max(map(len, ids)) + max_tokens)
    given = {} if save_kernels is None else {"save_kernels": str(save_kernels)}
    runner = compile_model(load_model(checkpoint), backend, given, logits_to_keep=1)
    options |= {"max_new_tokens": max_tokens, "seed": seed, "stop": checkpoint.config.eos}
    started = time.perf_counter()
    if len(ids) == 1:
        made, read = _continue_one(runner, tokenizer, ids[0], options), "prompt"
    else:
        made = _continue_each(runner, tokenizer, prompts, ids, options)
        read = f"{len(ids)} prompts"
    seconds, count = time.perf_counter() - started, sum(map(len, ids))
    sys.stderr.write(f"{made} tokens in {seconds:.2f} s, {read} of {count} tokens included\n")


def _asked(tokenizer: Tokenizer, prompt: str, chat: bool) -> str:
    return tokenizer.chat([{"role": "user", "content": prompt}]) if chat else prompt


def _continue_one(
    runner: Executable, tokenizer: Tokenizer, ids: Sequence[int], options: Mapping[str, Any]
) -> int:
    """Write text as soon as it is certain; the number of tokens."""
    from seqmix.generate import generate

    decoder, count = tokenizer.decoder(), 0
    for token in generate(runner, ids, **options):
        count += 1
        sys.stdout.write(decoder.push(token))
        sys.stdout.flush()
    sys.stdout.write(decoder.finish() + "\n")
    return count


def _continue_each(
    runner: Executable,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    ids: Sequence[Sequence[int]],
    options: Mapping[str, Any],
) -> int:
    """Write every continuation under its prompt, as ``head`` does for files; the number of tokens.

    The texts wait for each other: those of a batch grow at the same time.
    """
    from seqmix.generate import generate_all

    rows = generate_all(runner, ids, **options)
    for number, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        gap = "\n" if number else ""
        sys.stdout.write(f"{gap}==> {prompt} <==\n{tokenizer.decode(row)}\n")
    return sum(map(len, rows))


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    if checkpoint.tokenizer is None:
        raise CheckpointError(
            f"{checkpoint.source}: has no tokenizer, so it cannot read a prompt; "
            "choose a checkpoint that brings one"
        )
    return checkpoint.tokenizer


def _warn_of_length(checkpoint: Checkpoint, tokens: int) -> None:
    context = checkpoint.config.context_length
    if tokens > context:
        warnings.warn(
            f"prompt and new tokens may reach {tokens} tokens, the model is meant for {context}; "
            "--rope can extend it",
            stacklevel=2,
        )
