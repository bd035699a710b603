"""``seqmix explain``: what a backend makes of every op."""

from __future__ import annotations

import dataclasses
import json
from typing import cast

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from seqmix import registry
from seqmix.backend import Backend
from seqmix.cli.loading import load_checkpoint, load_model
from seqmix.cli.progress import progress

__all__ = ["explain_model"]


def explain_model(source: str, backend: str, rope: str | None, as_json: bool) -> int:
    """Print native, decomposed and impossible ops; 1 if there are impossible ones."""
    from seqmix.choose import BackendLegality
    from seqmix.compile import program_of
    from seqmix_ir.passes import canonicalize, explain

    chosen = cast(type[Backend], registry.get("backends", backend))()
    model = load_model(load_checkpoint(source, rope))
    with progress("capturing"):
        module = canonicalize(program_of(model).module)
        record = explain(module, BackendLegality(chosen, chosen.default_target()))
    if as_json:
        print(json.dumps(dataclasses.asdict(record), indent=2))
        return int(bool(record.impossible))
    table = Table("op", "on " + backend, "count or reason")
    for name, count in sorted(record.native.items()):
        table.add_row(name, "[green]native[/]", str(count))
    for name, how in sorted(record.decomposed.items()):
        table.add_row(name, "[yellow]decomposed[/]", escape(how))
    for lost in record.impossible:
        table.add_row(lost.op, "[red]impossible[/]", escape(f"{lost.reason} at {lost.loc}"))
    Console().print(table)
    return int(bool(record.impossible))
