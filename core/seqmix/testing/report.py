"""What the kit found: rows, a table for people, JSON for scripts."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["CheckReport", "Overview", "Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: the largest error (relative to the largest value) and what is allowed."""

    check: str
    where: str
    error: float
    tolerance: float
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether the error is allowed; NaN is not."""
        return self.error <= self.tolerance


@dataclass
class CheckReport:
    """All rows of one subject, and notes on what could not be tried."""

    subject: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there are rows, all of them good."""
        return bool(self.rows) and all(row.ok for row in self.rows)

    @property
    def failures(self) -> list[Row]:
        """The rows that are not good."""
        return [row for row in self.rows if not row.ok]

    def raise_for_failures(self) -> None:
        """Raise AssertionError that lists every failure; for test suites."""
        if self.ok:
            return
        lines = [
            f"  {r.check} ({r.where}): error {r.error:.3g}, allowed {r.tolerance:.3g} {r.detail}"
            for r in self.failures
        ]
        raise AssertionError("\n".join([f"{self.subject} does not conform:", *lines]))

    def summary(self) -> list[Row]:
        """The worst row of each check and place."""
        worst: dict[tuple[str, str], Row] = {}
        for row in self.rows:
            kept = worst.setdefault((row.check, row.where), row)
            if not row.error <= kept.error and not math.isnan(kept.error):
                worst[row.check, row.where] = row
        return list(worst.values())

    def table(self) -> Table:
        """The worst row of each check and place, as a rich table."""
        from rich.table import Table

        table = Table(title=self.subject)
        for column in ("check", "where", "max error", "allowed", ""):
            table.add_column(column, justify="right" if "e" in column[-2:] else "left")
        for row in self.summary():
            mark = "[green]ok[/]" if row.ok else f"[red]FAILED[/] {row.detail}"
            table.add_row(row.check, row.where, f"{row.error:.2e}", f"{row.tolerance:.0e}", mark)
        return table

    def content(self) -> dict[str, Any]:
        """Everything, with ``ok`` of each row and of all."""
        rows = [{**dataclasses.asdict(row), "ok": row.ok} for row in self.rows]
        return {"subject": self.subject, "ok": self.ok, "rows": rows, "notes": self.notes}

    def to_json(self) -> str:
        """The content as JSON."""
        return json.dumps(self.content(), indent=2)


@dataclass
class Overview:
    """The reports of many subjects, as one table with a line for each."""

    reports: list[CheckReport] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there are reports, all of them good."""
        return bool(self.reports) and all(report.ok for report in self.reports)

    @property
    def notes(self) -> list[str]:
        """What could not be tried, each thing once."""
        return list(dict.fromkeys(note for report in self.reports for note in report.notes))

    def raise_for_failures(self) -> None:
        """Raise AssertionError that lists every failure of every subject."""
        texts = []
        for report in self.reports:
            try:
                report.raise_for_failures()
            except AssertionError as error:
                texts.append(str(error))
        if texts:
            raise AssertionError("\n".join(texts))

    def table(self) -> Table:
        """The checks of each subject, how many failed, and what came nearest to its limit."""
        from rich.table import Table

        table = Table(title="everything that is registered")
        for column in ("subject", "checks", "nearest to its limit", ""):
            table.add_column(column, justify="right" if column == "checks" else "left")
        for report in self.reports:
            failed = len(report.failures)
            mark = "[green]ok[/]" if report.ok else f"[red]{failed or 'nothing'} FAILED[/]"
            table.add_row(report.subject, str(len(report.rows)), _nearest(report), mark)
        return table

    def to_json(self) -> str:
        """The content of every report, as JSON."""
        content = {"ok": self.ok, "reports": [report.content() for report in self.reports]}
        return json.dumps(content, indent=2)


def _nearest(report: CheckReport) -> str:
    """The first failure, or the row whose error takes the largest part of what is allowed."""
    if report.failures:
        row = report.failures[0]
    else:
        measured = [row for row in report.rows if row.tolerance > 0]
        if not measured:
            return ""
        row = max(measured, key=lambda row: row.error / row.tolerance)
    return f"{row.check} ({row.where}): {row.error:.1e} of {row.tolerance:.0e}"
