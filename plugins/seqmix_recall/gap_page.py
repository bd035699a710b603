"""Passages as a web page: the tokens on which two models disagree, coloured; needs nothing else.

All text passes through :func:`escape`; the page's policy allows only its own style and script.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from seqmix.sealed_page import asset, content_policy, script_data
from seqmix_recall.gap_passages import Passage
from seqmix_recall.gap_plot import place_bins
from seqmix_recall.gap_report import GapReport, share_sentence
from seqmix_recall.gap_statistics import SliceFigures

__all__ = ["LEVELS", "level_of", "render_gap"]

LEVELS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Differences in nats from which on a token has the next stronger colour."""
LONGEST = 4096
"""Tokens of a passage that are shown."""
MAIN_SLICES = 4
CHART_WIDTH, CHART_HEIGHT = 640, 80


def render_gap(report: GapReport, passages: Sequence[Passage]) -> str:
    """The page; equal reports and passages give equal text."""
    style, script = (asset("seqmix_recall", f"gap_page.{kind}") for kind in ("css", "js"))
    title = escape(f"{report.model} against {report.reference}")
    shown = "".join(_passage(number, one) for number, one in enumerate(passages))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{content_policy(style, script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>Recall gap: {title}</title>\n'
        f"<style>{style}</style></head>\n<body>{_head(report)}\n<main>{_legend(report)}{shown}"
        f'</main>\n<aside id="details" aria-live="polite"><p>Point at a token, or move with '
        "<kbd>←</kbd> <kbd>→</kbd>; <kbd>n</kbd> and <kbd>p</kbd> go to the next and the previous "
        f"AR hit.</p></aside>\n"
        f'<script type="application/json" id="data">{_data(report, passages)}</script>\n'
        f"<script>{script}</script>\n</body></html>\n"
    )


def level_of(difference: float) -> int:
    """How strong the colour of a difference is: 0 for none, its sign that of the difference."""
    level = sum(abs(difference) >= start for start in LEVELS)
    return level if difference > 0 else -level


def _head(report: GapReport) -> str:
    main = "".join(_row(one) for one in report.gap.slices[:MAIN_SLICES])
    rest = "".join(_row(one) for one in report.gap.slices[MAIN_SLICES:] if one.tokens)
    columns = ("slice", "tokens", "share", "ppl", "ppl ref.", "difference (nats)", "of the gap")
    names = "".join(f'<th scope="col">{name}</th>' for name in columns)
    table = "<table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>"
    buckets = table.format(names=names, rows=rest)
    return (
        f"<header><h1>Recall gap</h1><dl><div><dt>model</dt><dd>{escape(report.model)}</dd></div>"
        f"<div><dt>reference</dt><dd>{escape(report.reference)}</dd></div></dl>"
        f"<p>{escape(share_sentence(report))}</p>"
        f'<div class="table">{table.format(names=names, rows=main)}</div>'
        "<details><summary>AR hits by distance and training count, and where they fall</summary>"
        f'<div class="table">{buckets}</div>'
        f"{_chart(report.tally.hits_at, report.tally.targets_at)}</details></header>"
    )


def _row(one: SliceFigures) -> str:
    error = "" if one.difference_error is None else f" ± {one.difference_error:.3f}"
    cells = (
        f"{one.tokens:,}",
        f"{one.proportion:.2%}",
        _number(one.model_perplexity, ",.2f"),
        _number(one.reference_perplexity, ",.2f"),
        _number(one.difference, "+.3f") + error,
        _number(one.contribution, ".1%"),
    )
    shown = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr><th scope="row">{escape(one.name)}</th>{shown}</tr>'


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _chart(hits: NDArray[np.int64], targets: NDArray[np.int64]) -> str:
    """Bars of the share of targets that are hits, by place."""
    edges, found, asked = place_bins(hits, targets)
    shares = found / np.maximum(asked, 1)
    top = float(shares.max(initial=0)) or 1.0
    scale = CHART_WIDTH / len(hits)
    bars = "".join(
        f'<rect x="{start * scale:.1f}" y="{CHART_HEIGHT * (1 - share / top):.1f}" '
        f'width="{max(0.5, (end - start) * scale - 1):.1f}" '
        f'height="{CHART_HEIGHT * share / top:.1f}">'
        f"<title>targets {start} to {end - 1}: {share:.2%} are AR hits</title></rect>"
        for start, end, share in zip(edges[:-1], edges[1:], shares, strict=True)
    )
    return (
        f'<figure><svg viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img" '
        'preserveAspectRatio="none" '
        f'aria-label="share of AR hits by place">{bars}</svg><figcaption>AR hits by place in the '
        f"window, 0 to {len(hits) - 1}; the highest bar is {top:.1%} of the targets there"
        "</figcaption></figure>"
    )


def _legend(report: GapReport) -> str:
    worse = "".join(f'<span class="t w{n}">{n}</span>' for n in range(1, len(LEVELS) + 1))
    better = "".join(f'<span class="t b{n}">{n}</span>' for n in range(len(LEVELS), 0, -1))
    steps = ", ".join(f"{start:g}" for start in LEVELS)
    return (
        f'<p class="legend"><span>{better} the model gives more</span>'
        f"<span>{worse} the reference gives more</span>"
        f'<span><span class="t h">AR hit</span> repeated, fewer than {report.threshold:,} times '
        f'in training</span><span class="muted">steps: {steps} nats</span></p>'
    )


def _passage(number: int, passage: Passage) -> str:
    cut = len(passage.texts) > LONGEST
    note = f' <span class="muted">(the first {LONGEST:,} tokens)</span>' if cut else ""
    first = f'<span class="t s" data-i="0">{_shown(passage.texts[0])}</span>'
    tokens = "".join(
        f'<span class="{_classes(passage, place)}" data-i="{place + 1}">{_shown(text)}</span>'
        for place, text in enumerate(passage.texts[1:LONGEST])
    )
    return (
        f"<section><h2>{escape(passage.title)}{note}</h2>"
        f'<p class="passage" tabindex="0" data-p="{number}">{first}{tokens}</p></section>'
    )


def _classes(passage: Passage, place: int) -> str:
    level = level_of(float(passage.reference[place] - passage.model[place]))
    colour = f" w{level}" if level > 0 else f" b{-level}" if level < 0 else ""
    return f"t{colour}{' h' if passage.hits.is_hit[0, place] else ''}"


def _shown(text: str) -> str:
    """A token as it stands in the passage; one without text, or that is a line end, has a sign."""
    return escape(text).replace("\n", '<i class="e">⏎</i>\n') if text else '<i class="e">·</i>'


def _data(report: GapReport, passages: Sequence[Passage]) -> str:
    """What the script shows of a token, as JSON that cannot end the script element."""
    content = {
        "model": report.model,
        "reference": report.reference,
        "threshold": report.threshold,
        "passages": [_passage_data(one) for one in passages],
    }
    return script_data(content)


def _passage_data(passage: Passage) -> dict[str, list[object]]:
    size = min(len(passage.texts), LONGEST)
    return {
        "texts": list(passage.texts[:size]),
        "model": [round(float(v), 4) for v in passage.model[: size - 1]],
        "reference": [round(float(v), 4) for v in passage.reference[: size - 1]],
        "earlier": passage.hits.earlier[0, : size - 1].tolist(),
        "counts": passage.hits.counts[0, : size - 1].tolist(),
    }
