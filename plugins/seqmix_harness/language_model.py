"""A seqmix model as lm-eval's ``LM``: the harness asks in texts, the model answers in ids."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from seqmix.errors import ConfigError
from seqmix.progress import counting_bars
from seqmix_harness.generation import continue_until, read_ending
from seqmix_harness.scoring import Score, Scorer
from seqmix_harness.texts import Texts, first_token

if TYPE_CHECKING:
    from seqmix.checkpoint import Tokenizer
    from seqmix.generate import Runner

__all__ = ["INSTALL", "make_language_model", "rolling_windows"]

INSTALL = 'this needs lm-eval; pip install "seqmix[harness]"'


def make_language_model(
    runner: Runner,
    tokenizer: Tokenizer,
    *,
    batch: int = 8,
    max_length: int | None = None,
    prefix_token: int | None = None,
    share_contexts: bool | None = None,
    seed: int = 0,
) -> Any:
    """An ``lm_eval.api.model.LM`` of a torch model or of what ``seqmix.compile`` made of one.

    ``max_length`` is the most tokens that are read, by default the model's context; longer contexts
    lose their beginning. ``prefix_token`` stands before a text without context: by default bos,
    else eos. ``share_contexts`` says whether the choices of one question go on from one state.
    ``seed`` makes drawn continuations repeatable. Raises ConfigError without lm-eval.
    """
    try:
        from lm_eval.api.model import LM
    except ImportError as error:
        raise ConfigError(INSTALL) from error
    scorer = Scorer(runner, max_length, batch, share_contexts)
    texts = Texts(tokenizer, first_token(runner.config, tokenizer, prefix_token))

    # Where lm-eval is not installed mypy knows nothing of its class.
    class SeqmixLM(LM):  # type: ignore[misc]
        """Answers the three kinds of requests."""

        def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
            """Log probability of each continuation, and whether it is the greedy one."""
            asked = [request.args for request in requests]
            with _bar(len(asked), "log probabilities") as step:

                def known(number: int, score: Score) -> None:
                    self.cache_hook.add_partial("loglikelihood", asked[number], _pair(score))
                    step()

                scores = scorer([texts.pair(*pair) for pair in asked], known)
            return [_pair(score) for score in scores]

        def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
            """Log probability of each text; windows are disjoint, every token counts once."""
            windows, owners = [], []
            for number, request in enumerate(requests):
                found = rolling_windows(
                    texts.plain(request.args[0]), texts.first, scorer.max_length
                )
                windows += found
                owners += [number] * len(found)
            with _bar(len(windows), "windows of texts") as step:
                scores = scorer(windows, lambda number, score: step())
            totals = [0.0] * len(requests)
            for owner, score in zip(owners, scores, strict=True):
                totals[owner] += score.log_probability
            for request, total in zip(requests, totals, strict=True):
                self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
            return totals

        def generate_until(self, requests: Sequence[Any]) -> list[str]:
            """Continuations up to the stop strings of each request."""
            results = [""] * len(requests)
            with _bar(len(requests), "continuations") as step:
                for numbers, ending in _batches(requests, texts, batch):
                    prompts = [texts.begun(requests[i].args[0]) or [texts.first] for i in numbers]
                    made = continue_until(
                        runner,
                        tokenizer,
                        prompts,
                        ending,
                        scorer.max_length,
                        seed=seed,
                        rows=numbers,
                    )
                    for number, text in zip(numbers, made, strict=True):
                        results[number] = text
                        self.cache_hook.add_partial("generate_until", requests[number].args, text)
                        step()
            return results

        @property
        def tokenizer_name(self) -> str:
            """What lm-eval tells caches of requests apart by."""
            return f"seqmix-{runner.config.name}"

        def apply_chat_template(
            self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
        ) -> str:
            """A conversation as the prompt that the checkpoint's template makes of it."""
            return tokenizer.chat(chat_history)

    return SeqmixLM()


def rolling_windows(
    ids: Sequence[int], first: int, max_length: int
) -> list[tuple[list[int], list[int]]]:
    """(context, continuation) pairs that cover ``ids``, each of which is continued exactly once.

    Every window reads at most ``max_length`` tokens: the first one ``first`` and what follows, the
    next ones begin with the last token before; the last one has all the context that fits.
    """
    pairs = []
    for start in range(0, len(ids), max_length):
        stop = min(start + max_length, len(ids))
        context = list(ids[stop - 1 - max_length : start]) if start else [first]
        pairs.append((context, list(ids[start:stop])))
    return pairs


def _pair(score: Score) -> tuple[float, bool]:
    return score.log_probability, score.greedy


def _batches(requests: Sequence[Any], texts: Texts, batch: int) -> Iterator[tuple[list[int], Any]]:
    """Numbers of requests that end alike, long prompts first, so that a batch is of like length."""
    groups = defaultdict(list)
    for number, request in enumerate(requests):
        groups[read_ending(request.args[1])].append(number)
    for ending, numbers in groups.items():
        numbers.sort(key=lambda i: (-len(texts.begun(requests[i].args[0])), i))
        for start in range(0, len(numbers), batch):
            yield numbers[start : start + batch], ending


@contextmanager
def _bar(total: int, what: str) -> Iterator[Callable[[], None]]:
    """A bar on standard error; nothing where nobody looks."""
    with counting_bars(transient=False) as bar:
        row = bar.add_task(what, total=total)
        yield lambda: bar.advance(row)
