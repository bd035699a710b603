"""The page of a recall gap: hostile text stays text, colours and marks are where they belong."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import numpy as np
import pytest
from tests.core.page_reader import Page

from seqmix_recall.gap_hits import Hits
from seqmix_recall.gap_page import LONGEST, level_of, render_gap
from seqmix_recall.gap_passages import Passage, token_texts
from seqmix_recall.gap_report import GapReport
from seqmix_recall.gap_share import GapShare
from seqmix_recall.gap_slices import Tally, slice_names
from seqmix_recall.gap_statistics import measure_gap

HOSTILE = "</script><script>alert(1)</script><!--\"'&amp;\u2028"


def report(name: str = "conv") -> GapReport:
    names = slice_names(8, 5)
    sums = np.zeros((3, len(names), 3))
    sums[:, 0] = [8, -16, -12]
    sums[:, 1] = [2, -6, -3]
    sums[:, 2] = [6, -10, -9]
    tally = Tally(names, sums, np.arange(8), np.full(8, 9), np.zeros(3))
    return GapReport(
        name, "attention", measure_gap(tally), tally, 8, 3, "f" * 64, 5, 99, 0, "window"
    )


def passage(texts: list[str], differences: list[float], hits: dict[int, int]) -> Passage:
    size = len(texts) - 1
    earlier = np.full((1, size), -1)
    for place, before in hits.items():
        earlier[0, place] = before
    found = Hits(earlier >= 0, earlier, np.zeros((1, size), np.int64))
    model = np.full(size, -3.0)
    return Passage("window 0: drawn at random", tuple(texts), model, model + differences, found)


def page_of(one: Passage, name: str = "conv") -> tuple[str, Page]:
    text = render_gap(report(name), [one])
    return text, Page(text)


def test_hostile_text_stays_text() -> None:
    one = passage(["a", HOSTILE, "b"], [0.0, 0.0], {})
    text, page = page_of(one, name=HOSTILE)
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert "alert" not in re.sub(r"&lt;script&gt;alert|u003cscript\\u003ealert", "", text)
    data = json.loads(page.text["data"])
    assert data["passages"][0]["texts"] == ["a", HOSTILE, "b"]
    assert data["model"] == HOSTILE


def test_the_policy_names_the_only_style_and_script() -> None:
    text, page = page_of(passage(["a", "b"], [0.0], {}))
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    for kind in ("style", "script"):
        inside = re.search(rf"<{kind}>(.*?)</{kind}>", text, re.S).group(1)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert not re.search(r"(src|href)=|https?:|@import|url\(", text)
    assert not [a for _, a in page.tags if "style" in a]


def test_tokens_have_the_colours_of_their_differences() -> None:
    differences = [0.0, 0.25, 4.5, -0.6, -9.0, 0.24]
    one = passage(list("abcdefg"), differences, {2: 0, 4: 1})
    _, page = page_of(one)
    classes = {a["data-i"]: a["class"] for _, a in page.tags if "data-i" in a}
    assert classes == {
        "0": "t s",
        "1": "t",
        "2": "t w1",
        "3": "t w5 h",
        "4": "t b2",
        "5": "t b5 h",
        "6": "t",
    }
    data = json.loads(page.text["data"])["passages"][0]
    assert data["earlier"] == [-1, -1, 0, -1, 1, -1]
    assert data["reference"][2] == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("difference", "level"), [(0.0, 0), (0.3, 1), (-0.3, -1), (1.0, 3), (-3.9, -4), (50.0, 5)]
)
def test_levels(difference: float, level: int) -> None:
    assert level_of(difference) == level


def test_tokens_without_text_have_a_sign() -> None:
    text, _ = page_of(passage(["a", "", "\n"], [0.0, 0.0], {}))
    assert 'data-i="1"><i class="e">·</i>' in text
    assert 'data-i="2"><i class="e">⏎</i>\n</span>' in text


def test_long_passages_are_cut_and_say_so() -> None:
    text, page = page_of(passage(["x"] * (LONGEST + 5), [0.0] * (LONGEST + 4), {}))
    assert "the first 4,096 tokens" in text
    assert sum("data-i" in a for _, a in page.tags) == LONGEST
    assert len(json.loads(page.text["data"])["passages"][0]["model"]) == LONGEST - 1


def test_the_table_and_a_share_that_is_none() -> None:
    one = report()
    text = render_gap(one, [])
    assert "share of the gap due to AR hits: 75.0" in text
    assert "20.09" in text  # exp(6 / 2), the perplexity of the model at the hits
    none = GapReport(**{**vars(one), "gap": _without_share(one)})
    assert "none: because" in render_gap(none, [])
    assert json.loads(json.dumps(none.as_dict()))["share_of_gap"] is None


def _without_share(one: GapReport) -> object:
    from dataclasses import replace

    return replace(one.gap, share=GapShare(None, "because"), share_error=None)


class Halves:
    """A tokenizer whose ids 0 and 1 are halves of one character."""

    def decoder(self) -> object:
        class Decoder:
            def push(self, token: int) -> str:
                return ["", "\N{SNOWMAN}", "a"][token]

            def finish(self) -> str:
                return "\ufffd"

        return Decoder()


def test_texts_of_tokens_join_to_the_text() -> None:
    assert token_texts(Halves(), [2, 0, 1, 0]) == ["a", "", "\N{SNOWMAN}", "\ufffd"]
    assert token_texts(None, [5, 6]) == ["5 ", "6 "]
