"""The head of the page: what was compared, how many ops of each kind, what the backend does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from html import escape

from seqmix.page.listing import Side
from seqmix.page.markup import plural
from seqmix_ir.passes import Legalization

__all__ = ["Subject", "head"]

_ORDER = ("impossible", "decomposed", "gone", "native")
"""What needs attention stands first."""


@dataclass(frozen=True)
class Subject:
    """What the page is about."""

    model: str
    backend: str
    target: str
    record: Legalization


def head(subject: Subject, before: Side, after: Side) -> str:
    """Heading, verdict, and a table of the kinds of ops."""
    counts = [Counter(row.name for row in side.ops()) for side in (before, after)]
    return (
        f"<header><h1>{escape(subject.model)}</h1>{_facts(subject, counts)}"
        f"{_impossible(subject)}{_kinds(subject, counts)}</header>"
    )


def _facts(subject: Subject, counts: list[Counter[str]]) -> str:
    record = subject.record
    lost = {impossible.op for impossible in record.impossible}
    native = [name for name in counts[1] if name not in lost]
    facts = {
        "backend": f"{subject.backend} ({subject.target})" if subject.target else subject.backend,
        "captured": plural(counts[0].total(), "op"),
        "legalized": plural(counts[1].total(), "op"),
        "native": plural(len(native), "kind"),
        "decomposed": plural(len(record.decomposed), "kind"),
        "impossible": plural(len(lost), "kind"),
    }
    terms = (f"<div><dt>{name}</dt><dd>{escape(fact)}</dd></div>" for name, fact in facts.items())
    return f"<dl>{''.join(terms)}</dl>"


def _impossible(subject: Subject) -> str:
    """Every op that cannot run and why; the same reason at many places is one line."""
    if not subject.record.impossible:
        return ""
    places: dict[tuple[str, str], list[str]] = {}
    for lost in subject.record.impossible:
        places.setdefault((lost.op, lost.reason), []).append(lost.loc)
    lines = "".join(
        f"<li><b>{escape(op)}</b>: {escape(reason)}; at {escape(locs[0])}"
        + (f" and {len(locs) - 1} more" if len(locs) > 1 else "")
        + "</li>"
        for (op, reason), locs in places.items()
    )
    name = escape(subject.backend)
    return (
        f'<div class="lost" role="alert"><p>{name} cannot run this graph:</p><ul>{lines}</ul></div>'
    )


def _kinds(subject: Subject, counts: list[Counter[str]]) -> str:
    record = subject.record
    lost = {impossible.op: impossible.reason for impossible in record.impossible}
    names = sorted({*counts[0], *counts[1], *record.decomposed, *lost})
    verdicts = {name: _verdict(name, record, lost, counts[1]) for name in names}
    rows = []
    for name in sorted(names, key=lambda name: _ORDER.index(verdicts[name][0])):
        kind, note = verdicts[name]
        rows.append(
            f'<tr><th scope="row"><button type="button" class="find">{escape(name)}</button></th>'
            f"<td>{counts[0][name]}</td><td>{counts[1][name]}</td>"
            f'<td><span class="{kind}">{kind}</span> {escape(note)}</td></tr>'
        )
    opened = " open" if lost or record.decomposed else ""
    return (
        f'<details id="kinds"{opened}><summary>Ops by kind</summary><div class="table" tabindex="0"'
        ' role="region" aria-label="Ops by kind"><table><thead><tr><th scope="col">op</th>'
        '<th scope="col">captured</th><th scope="col">legalized</th>'
        f'<th scope="col">on {escape(subject.backend)}</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _verdict(
    name: str, record: Legalization, lost: dict[str, str], after: Counter[str]
) -> tuple[str, str]:
    """What the backend does with a kind of op, and why."""
    if name in lost:
        return "impossible", lost[name]
    if name in record.decomposed:
        return "decomposed", record.decomposed[name]
    return ("native", "") if after[name] else ("gone", "folded, joined or dead")
