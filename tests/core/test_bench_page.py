"""Pages and tables of ``seqmix bench`` say what was measured, and run nothing foreign."""

from __future__ import annotations

import re

from tests.core.bench_figures import figures
from tests.core.page_reader import Page

from seqmix.bench.page import render_bench
from seqmix.bench.table import markdown, terminal


def test_the_page_needs_nothing_and_runs_nothing() -> None:
    text = render_bench(figures())
    page = Page(text)
    assert "<script" not in text
    assert "alert(&quot;1&quot;)" in text
    assert "style=" not in text.replace("default-src 'none'; style-src", "")
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    charts = [a["aria-label"] for tag, a in page.tags if tag == "svg" and "role" in a]
    assert charts[0] == "tokens/s over tokens of the prompt"
    assert len(charts) == 7
    dots = [a for tag, a in page.tags if tag == "circle" and "cx" in a and a["r"] == "4"]
    assert len(dots) == 8, "two lengths, two phases, speed and share"
    assert not [a for _, a in page.tags if "src" in a or a.get("href", "").startswith("http")]


def test_tables_say_who_failed() -> None:
    text = markdown(figures())
    rows = re.findall(r"^\|.*\|$", text, re.MULTILINE)
    assert len({row.count(" | ") for row in rows[2:]}) == 1
    assert "| a prompt of 8 tokens | 400 (" in text
    assert text.count("| failed |") == 4
    assert "broke" in text.splitlines()[-1]
    assert len(terminal(figures())) == 5
