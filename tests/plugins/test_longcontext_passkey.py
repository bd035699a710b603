"""Passkey retrieval: the prompts, the verdicts, and a scripted model that is always right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.plugins import longcontext_cases as cases

from seqmix.checkpoint import Checkpoint
from seqmix.errors import ConfigError
from seqmix.weights import Weights
from seqmix_longcontext.methods import parse_methods
from seqmix_longcontext.passkey import NEW_TOKENS, Hunt, measure_passkey
from seqmix_longcontext.passkey_prompt import FILLER, draw_prompt, first_number, hidden_prompt
from seqmix_longcontext.plots import plot_passkey
from seqmix_longcontext.subject import Subject


class ScriptedSubject(Subject):
    """A subject whose every runner is the same script."""

    def __init__(self, answer: Any) -> None:
        model = cases.model()
        checkpoint = Checkpoint(model.config, Weights.of(model), cases.Letters())
        super().__init__(checkpoint)
        object.__setattr__(self, "script", cases.Scripted(answer))

    def runner(self, method: Any, logits_to_keep: int = 0) -> Any:
        return self.script


def hunt_with(answer: Any, out: Path, hunt: Hunt, methods: str = "none", **more: Any) -> Any:
    subject = ScriptedSubject(answer)
    found = parse_methods(methods, subject.checkpoint.config)
    return measure_passkey(subject, found, hunt, out, **more)


@pytest.mark.parametrize("length", [300, 301, 333, 1000])
@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_prompts_fill_the_length(length: int, depth: float) -> None:
    letters = cases.Letters()
    ids = hidden_prompt(letters, length, depth, 12345)
    assert length - max(map(len, FILLER)) <= len(ids) <= length
    text = letters.decode(ids)
    assert text.count("The pass key is 12345. Remember it. 12345 is the pass key.") == 1
    assert text.endswith("What is the pass key? The pass key is")
    before, after = (text.count(FILLER[0], *part) for part in
                     [(0, text.index("12345")), (text.index("12345"), len(text))])  # fmt: skip
    if length == 1000:
        assert before / (before + after) == pytest.approx(depth, abs=0.1)


def test_the_filler_goes_round() -> None:
    text = cases.Letters().decode(hidden_prompt(cases.Letters(), 600, 1.0, 12345))
    assert (
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
        in text
    )


def test_no_room_for_the_key() -> None:
    with pytest.raises(
        ConfigError, match=r"a prompt with a pass key has at least 2.. tokens, found"
    ):
        hidden_prompt(cases.Letters(), 100, 0.5, 12345)
    with pytest.raises(ConfigError, match=r"between 0 and 1, found 1\.5"):
        hidden_prompt(cases.Letters(), 1000, 1.5, 12345)


def test_keys_have_five_digits_and_follow_the_seed() -> None:
    drawn = [draw_prompt(cases.Letters(), 400, None, (0, i)) for i in range(40)]
    assert all(10_000 <= p.key <= 99_999 for p in drawn)
    assert len({p.key for p in drawn}) > 35
    assert min(p.depth for p in drawn) < 0.2
    assert max(p.depth for p in drawn) > 0.8
    assert drawn[3] == draw_prompt(cases.Letters(), 400, None, (0, 3))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(" 12345.", "12345"), ("the 7 and 8", "7"), ("none", ""), ("123456", "123456")],
)
def test_the_first_number_is_the_answer(answer: str, expected: str) -> None:
    assert first_number(answer) == expected


def test_who_copies_the_key_is_always_right(tmp_path: Path) -> None:
    hunt = Hunt([300, 420], [0.0, 0.5, 1.0], trials=2)
    found = hunt_with(cases.copies_the_key, tmp_path, hunt, chunk=64)
    assert [row["accuracy"] for row in found.rows] == [1.0] * 6
    assert [(row["length"], row["depth"]) for row in found.rows] == [
        (n, d) for n in (300, 420) for d in (0.0, 0.5, 1.0)
    ]
    assert all(t["tokens"] + NEW_TOKENS <= t["length"] for t in found.trials)


@pytest.mark.parametrize(
    "answer",
    [
        lambda text: " 1" + cases.copies_the_key(text).strip(),  # a digit too many
        lambda text: cases.copies_the_key(text)[:5],  # one too few
        lambda text: " I do not know.",
        lambda text: " 7 or" + cases.copies_the_key(text),
    ],
)
def test_who_does_not_is_always_wrong(answer: Any, tmp_path: Path) -> None:
    found = hunt_with(answer, tmp_path, Hunt([300], [0.0, 1.0]))
    assert [row["accuracy"] for row in found.rows] == [0.0, 0.0]


def test_who_sees_only_the_end_finds_only_what_is_there(tmp_path: Path) -> None:
    found = hunt_with(
        lambda text: cases.copies_the_key(text[-150:]), tmp_path, Hunt([500], [0.0, 1.0])
    )
    assert [row["accuracy"] for row in found.rows] == [0.0, 1.0]


def test_prompts_are_read_in_pieces(tmp_path: Path) -> None:
    subject = ScriptedSubject(cases.copies_the_key)
    methods = parse_methods("none", subject.checkpoint.config)
    measure_passkey(subject, methods, Hunt([300], [0.5]), tmp_path, chunk=50)
    assert subject.script.longest == 50


def test_every_method_gets_the_same_prompts(tmp_path: Path) -> None:
    hunt = Hunt([300], trials=4)
    found = hunt_with(cases.copies_the_key, tmp_path, hunt, "none,yarn:2").trials
    keys = [[t["key"] for t in found if t["method"] == m] for m in ("none", "yarn:2")]
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 4


def test_random_depths_are_counted_in_fifths(tmp_path: Path) -> None:
    found = hunt_with(cases.copies_the_key, tmp_path, Hunt([300], trials=12))
    assert {row["depth"] for row in found.rows} <= {0.1, 0.3, 0.5, 0.7, 0.9}
    assert sum(row["trials"] for row in found.rows) == 12


def test_answers_outlive_a_kill(tmp_path: Path) -> None:
    hunt = Hunt([300], [0.0, 0.5, 1.0])

    def kill(what: str, count: int) -> None:
        if count and "0.50" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hunt_with(cases.copies_the_key, tmp_path, hunt, told=kill)
    # Now a runner that knows nothing: what was answered before stays answered.
    found = hunt_with(lambda text: " ?", tmp_path, hunt)
    assert [row["accuracy"] for row in found.rows] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("hunt", "expected"),
    [({"trials": 0}, "at least 1 trial"), ({"lengths": []}, "needs lengths"),
     ({"depths": [0.5, 2.0]}, "between 0 and 1, found 2.0")],
)  # fmt: skip
def test_hunts_that_make_no_sense(hunt: dict, expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)):
        Hunt(**{"lengths": [300], **hunt})


def test_the_heat_map(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = hunt_with(cases.copies_the_key, tmp_path, Hunt([300, 350], [0.0, 1.0]), "none,yarn:2")
    plot_passkey(found.rows, tmp_path / "a.png", "title")
    plot_passkey(found.rows, tmp_path / "b.png", "title")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
