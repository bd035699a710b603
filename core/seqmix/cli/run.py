"""``seqmix run``: a prompt, continued."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from seqmix.cli.loading import check_backend_name, compile_model, load_checkpoint, load_model
from seqmix.errors import CheckpointError

if TYPE_CHECKING:
    from seqmix.checkpoint import Checkpoint, Tokenizer

__all__ = ["continue_text"]


def continue_text(
    source: str,
    prompt: str,
    backend: str,
    rope: str | None,
    max_tokens: int,
    temperature: float,
    seed: int | None,
    chat: bool,
) -> None:
    """Print the prompt's continuation as it is made, and the speed on standard error."""
    from seqmix.generate import generate

    check_backend_name(backend)
    checkpoint = load_checkpoint(source, rope)
    tokenizer = _tokenizer(checkpoint)
    text = tokenizer.chat([{"role": "user", "content": prompt}]) if chat else prompt
    ids = tokenizer.encode(text)
    _warn_of_length(checkpoint, len(ids) + max_tokens)
    runner = compile_model(load_model(checkpoint), backend)
    started = time.perf_counter()
    tokens = generate(
        runner,
        ids,
        max_new_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        stop=checkpoint.config.eos,
    )
    count = _stream(tokenizer, tokens)
    seconds = time.perf_counter() - started
    sys.stderr.write(f"{count} tokens in {seconds:.2f} s, prompt of {len(ids)} tokens included\n")


def _stream(tokenizer: Tokenizer, tokens: Iterator[int]) -> int:
    """Write text as soon as it is certain; the number of tokens."""
    decoder, count = tokenizer.decoder(), 0
    for token in tokens:
        count += 1
        sys.stdout.write(decoder.push(token))
        sys.stdout.flush()
    sys.stdout.write(decoder.finish() + "\n")
    return count


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
