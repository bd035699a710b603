"""Chat templates: conversations as prompts, rendered in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from seqmix.errors import CheckpointError

__all__ = ["INSTALL", "render_chat"]

INSTALL = "pip install 'seqmix[checkpoints]'"


def render_chat(
    template: str, messages: Sequence[Mapping[str, str]], specials: Mapping[str, str]
) -> str:
    """The prompt of ``messages``, up to where the answer begins.

    A template is part of a file that anyone may have written: it sees the messages and the special
    tokens, can change nothing, and whatever it raises is a CheckpointError.
    """
    environment = _environment()
    try:
        text: str = environment.from_string(template).render(
            messages=[dict(m) for m in messages], add_generation_prompt=True, **specials
        )
    except Exception as error:
        raise CheckpointError(
            f"the chat template refuses these messages: {type(error).__name__}: {error}"
        ) from error
    return text


def _environment() -> Any:
    """The names that templates written for transformers expect."""
    try:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise CheckpointError(f"chat templates need the package jinja2; {INSTALL}") from error

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _to_json
    return environment


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; jinja2's own filter is for HTML, sorts keys and escapes ``<``."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
