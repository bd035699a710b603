"""Text continued until it contains a stop string."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from seqmix.errors import ConfigError
from seqmix.generate import Options, generate

if TYPE_CHECKING:
    from seqmix.checkpoint import Tokenizer
    from seqmix.generate import Runner

__all__ = ["Ending", "continue_until", "read_ending", "until_stop"]

MOST_TOKENS = 256
"""New tokens where a task does not say how many, as in lm-eval."""
LENGTH_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
UNUSED = ("do_sample", "until")


@dataclass(frozen=True)
class Ending:
    """How far a text goes: before the first of ``stops``, after so many tokens; how it is drawn."""

    stops: tuple[str, ...]
    most_tokens: int
    sampling: tuple[tuple[str, float], ...]

    def options(self) -> Options:
        """The sampling as keywords of ``generate``."""
        return cast("Options", dict(self.sampling))


def read_ending(asked: Mapping[str, Any]) -> Ending:
    """The ``generation_kwargs`` of a task; ConfigError for one that is unknown."""
    if unknown := set(asked) - {*LENGTH_NAMES, *SAMPLING, *UNUSED}:
        raise ConfigError(
            f"generation_kwargs: {', '.join(sorted(unknown))} cannot be had; known: "
            f"{', '.join((*LENGTH_NAMES, *SAMPLING, *UNUSED))}"
        )
    until = asked.get("until") or []
    stops = tuple(stop for stop in ([until] if isinstance(until, str) else until) if stop)
    most = next((int(asked[name]) for name in LENGTH_NAMES if asked.get(name)), MOST_TOKENS)
    drawn = asked.get("do_sample", bool(asked.get("temperature")))
    sampling = [(name, asked[name]) for name in SAMPLING if asked.get(name) is not None]
    if not drawn:
        sampling = [(name, value) for name, value in sampling if name == "repetition_penalty"]
    elif "temperature" not in asked:
        sampling.append(("temperature", 1.0))
    return Ending(stops, most, tuple(sampling))


def continue_until(
    runner: Runner,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    ending: Ending,
    max_length: int,
    *,
    seed: int | None = 0,
    rows: Sequence[int] | None = None,
    done: Callable[[int, str], None] | None = None,
) -> list[str]:
    """The continuations of prompts as text, each cut before its first stop string.

    Prompts that would leave no room for the new tokens lose their beginning; where a task wants
    more tokens than the model's context has, one token of the prompt stays. The model's own ends
    stop a text as well. ``done`` is called with the number and the text of each, in order.
    """
    new = max(1, min(ending.most_tokens, max_length - 1))
    kept = [list(ids)[-max(1, max_length - new) :] for ids in prompts]
    decoders = [tokenizer.decoder() for _ in kept]
    texts, open_rows = [""] * len(kept), set(range(len(kept)))
    options: Options = {"stop": runner.config.eos, "seed": seed, "rows": rows, **ending.options()}
    for step in generate(runner, kept, max_new_tokens=new, **options):
        for row in sorted(open_rows):
            token = step[row]
            texts[row] += decoders[row].finish() if token is None else decoders[row].push(token)
            if token is None or until_stop(texts[row], ending.stops) != texts[row]:
                open_rows.remove(row)
        if not open_rows:
            break
    for row in open_rows:
        texts[row] += decoders[row].finish()
    found = [until_stop(text, ending.stops) for text in texts]
    for row, text in enumerate(found):
        if done is not None:
            done(row, text)
    return found


def until_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string that occurs in it."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text
