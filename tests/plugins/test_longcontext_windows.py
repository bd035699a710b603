"""Windows over documents, and the two means of their losses."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins import longcontext_cases as cases

from seqmix.errors import ConfigError
from seqmix_longcontext.plan import Plan, read_documents
from seqmix_longcontext.windows import Document, Stretch, cut_documents, score, sliding_windows


@given(tokens=st.integers(2, 200), length=st.integers(2, 60), stride=st.integers(1, 60))
def test_every_token_but_the_first_counts_once(tokens: int, length: int, stride: int) -> None:
    if stride >= length:
        return
    counted: list[int] = []
    for window in sliding_windows(tokens, length, stride):
        assert window.stop - window.start <= length
        counted += range(window.start + window.skip + 1, window.stop)
    assert counted == list(range(1, tokens))


def test_windows_by_hand() -> None:
    assert sliding_windows(10, 6, 2) == [
        Stretch(0, 6, 0),  # predicts 1 .. 5
        Stretch(2, 8, 3),  # 6 and 7
        Stretch(4, 10, 3),  # 8 and 9
    ]


def test_a_stride_beyond_the_length_is_refused() -> None:
    for stride in (0, 8, 9):
        with pytest.raises(ConfigError, match="would leave tokens out"):
            sliding_windows(100, 8, stride)


def test_two_means() -> None:
    found = score([np.full(9, 1.0), np.full(1, 3.0)])
    assert found.perplexity == pytest.approx(math.exp(1.2))
    assert found.window_weighted == pytest.approx(math.exp(2.0))
    assert (found.windows, found.targets) == (2, 10)


def test_a_hopeless_loss_is_infinite() -> None:
    assert score([np.full(2, 800.0)]).perplexity == math.inf


def test_documents_begin_in_equal_distances() -> None:
    documents = cut_documents("a", list(range(32)), 3, 10)
    assert [(d.start, d.ids[0], len(d.ids)) for d in documents] == [
        (0, 0, 10), (10, 10, 10), (20, 20, 10),
    ]  # fmt: skip
    assert [d.start for d in cut_documents("a", list(range(100)), 3, 10)] == [0, 33, 66]


@pytest.mark.parametrize(
    ("count", "length", "expected"),
    [
        (3, 11, "a.txt: has 32 tokens, 3 x 11 are needed"),
        (1, 33, "a.txt: has 32 tokens, 33 are needed"),
        (0, 3, "windows should be at least 1, found 0"),
    ],
)
def test_texts_that_are_too_short(count: int, length: int, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cut_documents("a.txt", list(range(32)), count, length)
    assert expected in str(caught.value)


def test_files_take_turns_and_begin_with_bos(tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    files[0].write_text("abcdefgh")
    files[1].write_text("ABCDEFGH")
    plain = read_documents(files, cases.Letters(), 4, 2)
    assert ["".join(map(chr, d.ids)) for d in plain] == ["abcd", "ABCD", "efgh", "EFGH"]
    first, *_ = read_documents(files, cases.Letters(), 4, 2, bos=1)
    assert first.ids == (1, *map(ord, "abc"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"\xff\xfe\xff")
    for name in ("missing", "b"):
        with pytest.raises(ConfigError, match=f"{name}: cannot be read as UTF-8 text"):
            read_documents([tmp_path / name], cases.Letters(), 4, 1)
    with pytest.raises(ConfigError, match="no text to read"):
        read_documents([], cases.Letters(), 4, 1)


DOCUMENTS = [Document("a", 0, tuple(range(10))), Document("a", 10, tuple(range(10)))]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lengths": [1]}, "at least 2, found 1"),
        ({"lengths": []}, "found none"),
        ({"lengths": [4, 4]}, "different numbers of tokens"),
        ({"lengths": [11]}, "a: has 10 tokens from token 0 on, 11 are needed"),
        ({"counts": [2, 1, 1]}, "3 numbers of windows for 2 lengths"),
        ({"mode": "sideways"}, "single or sliding, found 'sideways'"),
        ({"documents": []}, "no document"),
    ],
)
def test_plans_that_cannot_be_kept(changes: dict, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Plan(**{"documents": DOCUMENTS, "lengths": [4, 8], **changes})
    assert expected in str(caught.value)


def test_longer_lengths_may_read_fewer_documents() -> None:
    plan = Plan(DOCUMENTS, [4, 8], [2, 1])
    assert (len(plan.of(4)), len(plan.of(8))) == (2, 1)
    assert [plan.longest(d) for d in DOCUMENTS] == [8, 4]
    assert plan.tokens == 12
