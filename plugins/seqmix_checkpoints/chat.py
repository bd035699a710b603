"""Chat templates: conversations as prompts, rendered in a sandbox."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from seqmix.errors import CheckpointError

__all__ = ["INSTALL", "render_chat"]

INSTALL = "pip install 'seqmix[checkpoints]'"
LIMIT = 20_000_000
"""Characters of a prompt: some five million tokens."""
SHOWN = 500


def render_chat(
    template: str, messages: Sequence[Mapping[str, str]], specials: Mapping[str, str]
) -> str:
    """The prompt of ``messages``, up to where the answer begins.

    A template is part of a file that anyone may have written: it sees the messages and the special
    tokens, can change nothing, ends after an amount of work, and whatever it raises is a
    CheckpointError.
    """
    try:
        from seqmix_checkpoints.chat_sandbox import ChatSandbox
    except ImportError as error:
        raise CheckpointError(f"chat templates need the package jinja2; {INSTALL}") from error
    try:
        parts = (
            ChatSandbox()
            .compiled(template)
            .generate(messages=[dict(m) for m in messages], add_generation_prompt=True, **specials)
        )
        text = _together(parts)
    except Exception as error:
        raise CheckpointError(
            f"the chat template refuses these messages: {type(error).__name__}: "
            f"{str(error)[:SHOWN]}"
        ) from error
    return text


def _together(parts: Iterable[str]) -> str:
    """The parts as one text; ValueError when they are longer than a prompt can be."""
    found, length = [], 0
    for part in parts:
        length += len(part)
        if length > LIMIT:
            raise ValueError(f"the prompt is longer than {LIMIT} characters")
        found.append(part)
    return "".join(found)
