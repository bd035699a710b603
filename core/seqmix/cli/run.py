"""``seqmix run``: a prompt, continued."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from seqmix.cli.loading import compile_model, load_checkpoint, load_model
from seqmix.errors import CheckpointError

if TYPE_CHECKING:
    from seqmix.checkpoint import Checkpoint

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

    checkpoint = load_checkpoint(source, rope)
    ids = _encode(checkpoint, prompt, chat)
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        raise CheckpointError(f"{source}: has no tokenizer, so it cannot read a prompt")
    runner = compile_model(load_model(checkpoint), backend)
    decoder = tokenizer.decoder()
    count, started = 0, time.perf_counter()
    for token in generate(
        runner,
        ids,
        max_new_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        stop=checkpoint.config.eos,
    ):
        count += 1
        sys.stdout.write(decoder.push(token))
        sys.stdout.flush()
    seconds = time.perf_counter() - started
    sys.stdout.write("\n")
    sys.stderr.write(f"{count} tokens in {seconds:.2f} s, prompt of {len(ids)} tokens included\n")


def _encode(checkpoint: Checkpoint, prompt: str, chat: bool) -> list[int]:
    if checkpoint.tokenizer is None:
        raise CheckpointError(f"{checkpoint.source}: has no tokenizer, so it cannot read a prompt")
    if not chat:
        return checkpoint.tokenizer.encode(prompt)
    text = checkpoint.tokenizer.chat([{"role": "user", "content": prompt}])
    return checkpoint.tokenizer.encode(text)
