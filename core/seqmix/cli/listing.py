"""``seqmix plugins`` and ``seqmix backends``."""

from __future__ import annotations

import json
from typing import cast

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from seqmix import registry
from seqmix.backend import Availability, Backend
from seqmix.contribution import Status
from seqmix.errors import PluginError
from seqmix.progress import progress

__all__ = ["list_backends", "list_plugins"]

_COLORS = {"ok": "green", "failed": "red", "blocked": "yellow"}


def list_plugins(as_json: bool) -> int:
    """Print every contribution; 1 if one failed."""
    with progress("loading every plugin"):
        statuses = registry.statuses()
    if as_json:
        print(json.dumps([_row(status) for status in statuses], indent=2))
    else:
        _print_plugins(statuses)
    return int(any(status.state == "failed" for status in statuses))


def list_backends(as_json: bool) -> None:
    """Print every backend with its devices, or why it has none."""
    with progress("probing every backend"):
        found = {name: _probe(name) for name in registry.names("backends")}
    if as_json:
        rows = [{"name": n, "devices": a.devices, "reason": a.reason} for n, a in found.items()]
        print(json.dumps(rows, indent=2))
        return
    table = Table("backend", "devices", Column("reason", overflow="fold"))
    for name, available in found.items():
        table.add_row(
            name, ", ".join(available.devices) or "[red]none[/]", escape(available.reason)
        )
    Console().print(table)


def _row(status: Status) -> dict[str, str]:
    c = status.contribution
    return {
        "kind": c.kind,
        "name": c.name,
        "distribution": c.distribution,
        "version": c.version,
        "value": c.value,
        "status": status.state,
        "reason": status.reason,
    }


def _print_plugins(statuses: list[Status]) -> None:
    table = Table("kind", "name", "from", Column("status", overflow="fold"))
    for status in statuses:
        c = status.contribution
        shown = f"[{_COLORS[status.state]}]{status.state}[/]"
        table.add_row(c.kind, c.name, escape(c.origin), f"{shown} {escape(status.reason)}".strip())
    Console().print(table)


def _probe(name: str) -> Availability:
    try:
        return cast(type[Backend], registry.get("backends", name))().probe()
    except PluginError as error:
        return Availability((), str(error))
