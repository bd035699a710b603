"""The adapter to lm-eval against direct computations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from tests.plugins.lm_eval_cases import CONTEXT, Bytes, direct, greedy, make_model, needs_harness

import seqmix
from seqmix.config import Kind
from seqmix.errors import ConfigError
from seqmix.model import Model
from seqmix_harness.generation import Ending, continue_until, read_ending, until_stop
from seqmix_harness.language_model import make_language_model, rolling_windows
from seqmix_harness.scoring import Score, Scorer, can_share_contexts
from seqmix_harness.tasks import preset_tasks
from seqmix_harness.texts import Texts, first_token


@cache
def some_requests(kind: str) -> tuple[list[tuple[list[int], list[int]]], list[Score]]:
    """Contexts from short to too long, shared and not; continuations of 1 to 7, some greedy.

    With what they should score.
    """
    model = make_model(kind)
    draw = random.Random(0)
    found = []
    for size in (1, 2, 9, 23, 24, 25, 40):
        context = [draw.randrange(2, 256) for _ in range(size)]
        for length in (1, 3, 7):
            found.append((context, [draw.randrange(2, 256) for _ in range(length)]))
        if size < CONTEXT - 3:
            found.append((context, greedy(model, context, 3)))
    draw.shuffle(found)
    return found, [direct(model, *request) for request in found]


def assert_same(found: Sequence[Score], expected: Sequence[Score]) -> None:
    assert [score.greedy for score in found] == [score.greedy for score in expected]
    assert [score.log_probability for score in found] == pytest.approx(
        [score.log_probability for score in expected], abs=2e-4
    )


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("kind", ["attention", "base_conv"])
@pytest.mark.parametrize("batch", [1, 5])
def test_scores_are_those_of_direct_computations(kind: str, batch: int, share: bool) -> None:
    requests, expected = some_requests(kind)
    known: dict[int, Score] = {}
    found = Scorer(make_model(kind), batch=batch, share=share)(requests, known.__setitem__)
    assert_same(found, expected)
    assert any(score.greedy for score in found)
    assert not all(score.greedy for score in found)
    assert [known[i] for i in range(len(requests))] == found


def test_a_compiled_model_scores_the_same() -> None:
    requests, expected = some_requests("attention")
    context = max((context for context, _ in requests if len(context) < 10), key=len)
    some = [i for i, request in enumerate(requests) if request[0] in (context, requests[0][0])]
    executable = seqmix.compile(make_model(), "reference", cache=False)
    for share in (True, False):
        found = Scorer(executable, batch=len(some), share=share)([requests[i] for i in some])
        assert_same(found, [expected[i] for i in some])


def test_shared_contexts_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    read: list[int] = []
    forward = Model.forward

    def counted(self: Model, ids: Any, positions: Any, *rest: Any, **more: Any) -> Any:
        read.append(int((positions >= 0).sum()))
        return forward(self, ids, positions, *rest, **more)

    monkeypatch.setattr(Model, "forward", counted)
    requests = [([7] * 15, [i, i + 1]) for i in range(10, 14)]
    Scorer(model, share=True)(requests)
    assert sum(read) == 14 + 4 * 2
    read.clear()
    Scorer(model, share=False)(requests)
    assert sum(read) == 4 * 16


def test_encodings_that_do_not_split_share_nothing() -> None:
    assert can_share_contexts(make_model().config)
    assert can_share_contexts(make_model("base_conv").config)
    for mode, splits in (("per_window", False), ("per_query", True)):
        dynamic = Kind(kind="dynamic-ntk", original_context_length=8, mode=mode)
        assert can_share_contexts(make_model(position=dynamic).config) is splits


def test_requests_that_cannot_be_scored_are_named() -> None:
    scorer = Scorer(make_model())
    assert scorer([([5], [])]) == [Score(0.0, True)]
    with pytest.raises(ConfigError, match="request 1: its context is empty"):
        scorer([([5], [5]), ([], [5])])
    with pytest.raises(ConfigError, match="25 tokens does not fit a context of 24"):
        scorer([([5], [5] * 25)])
    with pytest.raises(ConfigError, match="at least 1, found 24 and 0"):
        Scorer(make_model(), batch=0)


@pytest.mark.parametrize("size", [0, 1, 5, 6, 7, 12, 13, 40])
def test_rolling_windows_continue_every_token_once(size: int) -> None:
    ids = list(range(100, 100 + size))
    windows = rolling_windows(ids, first=9, max_length=6)
    assert [token for _, behind in windows for token in behind] == ids
    for number, (before, behind) in enumerate(windows):
        start = ids.index(behind[0])
        assert before == ([9] if number == 0 else ids[start - len(before) : start])
        assert len(before) + len(behind) - 1 <= 6
        # All the context that fits, but for the first window.
        assert number == 0 or len(before) + len(behind) - 1 == 6


def test_texts_become_ids() -> None:
    texts = Texts(Bytes(bos=1, eos=2), first=1)
    assert texts.begun("ab") == [1, 97, 98]
    assert texts.plain("ab") == [97, 98]
    assert texts.pair("a ", "b") == ([1, 97], [32, 98])
    assert texts.pair("", "b") == ([1], [98])
    assert texts.pair("", "\x01b") == ([1], [98])
    assert texts.pair(" ", "b") == ([1], [32, 98])
    bare = Texts(Bytes(), first=0)
    assert bare.pair(" ", "b") == ([0], [32, 98])
    assert bare.pair("", "") == ([0], [])


def test_the_first_token() -> None:
    config = make_model().config
    assert first_token(config, Bytes()) == 1
    assert first_token(config, Bytes(), chosen=7) == 7
    assert first_token(config.model_copy(update={"bos": None}), Bytes()) == 0
    bare = config.model_copy(update={"bos": None, "eos": []})
    assert first_token(bare, Bytes(bos=4)) == 4
    with pytest.raises(ConfigError, match=r"neither bos nor eos.*--prefix-token"):
        first_token(bare, Bytes())
    with pytest.raises(ConfigError, match=r"in 0\.\.255, found 256"):
        first_token(config, Bytes(), chosen=256)


def test_continuations_end_before_a_stop_string() -> None:
    model = make_model()
    prompts = [[5, 6, 7], [9], list(range(40, 70))]
    whole = [
        "".join(map(chr, greedy(model, ids[-(CONTEXT - 10) :], 10))).split("\0")[0]
        for ids in prompts
    ]
    ending = Ending((), 10, ())
    assert continue_until(model, Bytes(), prompts, ending, CONTEXT) == whole
    stop = whole[0][2:4]
    told: dict[int, str] = {}
    found = continue_until(
        model, Bytes(), prompts, Ending((stop,), 10, ()), CONTEXT, done=told.__setitem__
    )
    assert found == [until_stop(text, [stop]) for text in whole]
    assert found[0] == whole[0][:2]
    assert told == dict(enumerate(found))
    assert until_stop("abcabd", ["d", "ca"]) == "ab"


def test_endings_of_tasks() -> None:
    assert read_ending({"until": "\n", "max_gen_toks": 5, "temperature": 0.7}) == Ending(
        ("\n",), 5, (("temperature", 0.7),)
    )
    assert read_ending({"until": ["a", ""], "do_sample": False, "temperature": 0.7}) == Ending(
        ("a",), 256, ()
    )
    assert read_ending({"do_sample": True, "top_k": 4}).options() == {
        "top_k": 4,
        "temperature": 1.0,
    }
    with pytest.raises(ConfigError, match="num_beams cannot be had; known: max_gen_toks"):
        read_ending({"num_beams": 4})


def test_draws_do_not_depend_on_the_batch() -> None:
    model, prompts = make_model(), [[5], [6, 7], [8]]
    ending = read_ending({"do_sample": True, "max_gen_toks": 6})
    together = continue_until(model, Bytes(), prompts, ending, CONTEXT, seed=4, rows=[0, 1, 2])
    alone = continue_until(model, Bytes(), prompts[2:], ending, CONTEXT, seed=4, rows=[2])
    assert together[2:] == alone


def test_presets_name_tasks_with_their_shots() -> None:
    shots = {task.name: task.shots for task in preset_tasks("open-llm")}
    assert shots == {"arc_challenge": 25, "hellaswag": 10, "mmlu": 5, "truthfulqa_mc2": 0}
    with pytest.raises(ConfigError, match="did you mean 'open-llm'"):
        preset_tasks("open-lm")


def asked(*arguments: Any) -> Any:
    return SimpleNamespace(args=arguments)


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_harness(monkeypatch)


@pytest.mark.usefixtures("harness")
def test_the_language_model_answers_all_kinds_of_requests() -> None:
    model = make_model()
    lm = make_language_model(model, Bytes(), batch=3)
    pairs = [("ab", " c"), ("", "d"), ("a long context that is cut", "e"), ("x", "")]
    found = lm.loglikelihood([asked(*pair) for pair in pairs])
    texts = Texts(Bytes(), 1)
    for (context, continuation), (value, is_greedy) in zip(pairs[:3], found, strict=False):
        expected = direct(model, *texts.pair(context, continuation))
        assert value == pytest.approx(expected.log_probability, abs=2e-4)
        assert is_greedy is expected.greedy
    assert found[3] == (0.0, True)
    text = "a text that is longer than two contexts of this model, by far"
    ids = list(text.encode())
    total = sum(
        direct(model, before, behind).log_probability
        for before, behind in rolling_windows(ids, 1, CONTEXT)
    )
    assert lm.loglikelihood_rolling([asked(text), asked("")]) == [
        pytest.approx(total, abs=2e-3),
        0.0,
    ]
    made = lm.generate_until([asked("ab", {"max_gen_toks": 4}), asked("", {"max_gen_toks": 2})])
    for text, prompt, count in zip(made, ([97, 98], [1]), (4, 2), strict=True):
        whole = "".join(map(chr, greedy(model, prompt, count)))
        assert text == whole.split("\0")[0]
    assert lm.apply_chat_template([{"role": "user", "content": "hi"}]) == "<user>hi"
