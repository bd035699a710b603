"""Passkey retrieval: whether a model finds a number in a long text (YaRN, section 4.3)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from seqmix.errors import ConfigError
from seqmix.generate import generate
from seqmix_longcontext.kept import Kept
from seqmix_longcontext.methods import Method
from seqmix_longcontext.passkey_prompt import Prompt, draw_prompt, first_number
from seqmix_longcontext.perplexity import Told
from seqmix_longcontext.reading import splits
from seqmix_longcontext.subject import Runner, Subject
from seqmix_longcontext.tables import write_table

__all__ = ["NEW_TOKENS", "Hunt", "Retrieval", "ask", "measure_passkey"]

NEW_TOKENS = 10
"""Tokens of an answer, as in the paper's script; they count to the length."""

FIFTHS = 5
"""Rows of a table where depths are drawn."""


@dataclass(frozen=True)
class Hunt:
    """What is asked: ``trials`` keys at each length and depth; no depths for random ones.

    The prompts are a function of ``seed``: every method gets the same.
    """

    lengths: Sequence[int]
    depths: Sequence[float] = ()
    trials: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        """ConfigError for what cannot be asked."""
        if self.trials < 1 or not self.lengths:
            raise ConfigError(
                f"passkey needs lengths and at least 1 trial, found {self.trials} trials at "
                f"lengths {list(self.lengths)}"
            )
        if wrong := [depth for depth in self.depths if not 0 <= depth <= 1]:
            raise ConfigError(f"depths should be between 0 and 1, found {wrong[0]}")

    def questions(self) -> Iterator[tuple[int, int, float | None, tuple[int, ...]]]:
        """Length, trial, depth and seed of each; trials come last, so that all cells fill up."""
        depths: Sequence[float | None] = self.depths or [None]
        for length in sorted(self.lengths):
            for trial in range(self.trials):
                for number, depth in enumerate(depths):
                    yield length, trial, depth, (self.seed, length, number, trial)

    def __len__(self) -> int:
        """How many prompts there are for one method."""
        return len(self.lengths) * max(1, len(self.depths)) * self.trials

    def cell(self, depth: float) -> float:
        """The depth that a prompt is counted under: its own, or the middle of its fifth."""
        if self.depths:
            return depth
        return (min(int(depth * FIFTHS), FIFTHS - 1) + 0.5) / FIFTHS


@dataclass(frozen=True)
class Retrieval:
    """The rows of ``passkey.csv``, and of ``trials.csv`` for each prompt."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    trials: list[dict[str, Any]] = field(default_factory=list)


def measure_passkey(
    subject: Subject,
    methods: Sequence[Method],
    hunt: Hunt,
    out: Path,
    *,
    chunk: int = 512,
    told: Told | None = None,
) -> Retrieval:
    """Every method on every prompt; answers are kept in ``out/answers``, so a killed run goes on.

    ``told`` counts prompts.
    """
    result = Retrieval()
    for method in methods:
        asker = _Asker(subject, method, Kept(out / "answers"), chunk)
        for length, trial, depth, seed in hunt.questions():
            prompt = draw_prompt(subject.tokenizer, length - NEW_TOKENS, depth, seed)
            if told is not None:
                told(f"{method.name}, {length} tokens, depth {prompt.depth:.2f}", 0)
            answer = asker.answer(prompt)
            where = {"method": method.name, "length": length, "depth": prompt.depth}
            result.trials.append({**where, "trial": trial, **_judged(prompt, answer)})
            if told is not None:
                told(f"{method.name}, {length} tokens, depth {prompt.depth:.2f}", 1)
        result.rows.extend(_cells(method, hunt, result.trials))
        write_table(result.trials, out / "trials.csv")
        write_table(result.rows, out / "passkey.csv")
    return result


def ask(runner: Runner, prompt: Sequence[int], chunk: int | None = 512) -> list[int]:
    """The likeliest continuation of a prompt, read once in pieces: at most ten tokens."""
    found = generate(
        runner,
        prompt,
        max_new_tokens=NEW_TOKENS,
        stop=runner.config.eos,
        prefill_chunk=chunk,
    )
    return list(found)


class _Asker:
    """Answers of one method: those that are kept, or else the model's."""

    def __init__(self, subject: Subject, method: Method, kept: Kept, chunk: int) -> None:
        self._subject, self._method, self._kept = subject, method, kept
        self._config = method.config(subject.checkpoint.config)
        # One scale for a whole call is that of the whole prompt.
        self._chunk = chunk if splits(self._config) else None
        self._runner: Runner | None = None

    def answer(self, prompt: Prompt) -> str:
        """The text behind the question."""
        about = {
            "weights": self._subject.identity,
            "config": self._config.model_dump(mode="json", exclude_defaults=True),
            "ids": hashlib.sha256(np.asarray(prompt.ids, "<i8").tobytes()).hexdigest(),
        }
        if (known := self._kept.get(about)) is not None:
            return str(known)
        if self._runner is None:
            self._runner = self._subject.runner(self._method, logits_to_keep=1)
        answer = self._subject.tokenizer.decode(ask(self._runner, prompt.ids, self._chunk))
        self._kept.put(about, answer)
        return answer


def _judged(prompt: Prompt, answer: str) -> dict[str, Any]:
    """Right is what begins with exactly the key; the answer goes into the table as it is."""
    right = first_number(answer) == str(prompt.key)
    return {"tokens": len(prompt.ids), "key": prompt.key, "answer": answer, "right": int(right)}


def _cells(
    method: Method, hunt: Hunt, trials: Sequence[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The share of right answers at each length and depth."""
    found: dict[tuple[int, float], list[int]] = {}
    for trial in trials:
        if trial["method"] == method.name:
            key = (trial["length"], hunt.cell(trial["depth"]))
            found.setdefault(key, []).append(trial["right"])
    for (length, depth), right in sorted(found.items()):
        yield {
            "method": method.name,
            "length": length,
            "depth": depth,
            "trials": len(right),
            "accuracy": sum(right) / len(right),
        }
