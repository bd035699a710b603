"""``seqmix explain``: what a backend makes of every op."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from seqmix import hooks
from seqmix.cli.loading import check_backend_name, load_checkpoint, load_model, pick_backend
from seqmix.progress import progress

if TYPE_CHECKING:
    from seqmix_ir.passes import Legalization

__all__ = ["explain_model"]


def explain_model(source: str, backend: str, rope: str | None, as_json: bool) -> int:
    """Print native, decomposed and impossible ops; 1 if there are impossible ones."""
    from seqmix.choose import BackendLegality
    from seqmix.compile import program_of
    from seqmix_ir.passes import canonicalize, explain

    check_backend_name(backend)
    model = load_model(load_checkpoint(source, rope))
    with progress("capturing"):
        module = program_of(model).module
        chosen = pick_backend(backend, module)
        module = canonicalize(module, hooks.rewrites(chosen.name))
        record = explain(module, BackendLegality(chosen, chosen.default_target()))
    if as_json:
        print(json.dumps(_content(chosen.name, record), indent=2))
    else:
        _print(chosen.name, record)
    return int(bool(record.impossible))


def _content(backend: str, record: Legalization) -> dict[str, Any]:
    return {
        "backend": backend,
        "native": dict(sorted(record.native.items())),
        "decomposed": dict(sorted(record.decomposed.items())),
        "impossible": [dataclasses.asdict(lost) for lost in record.impossible],
    }


def _print(backend: str, record: Legalization) -> None:
    table = Table("op", "on " + backend, Column("count or reason", overflow="fold"))
    for name, count in sorted(record.native.items()):
        table.add_row(name, "[green]native[/]", str(count))
    for name, how in sorted(record.decomposed.items()):
        table.add_row(name, "[yellow]decomposed[/]", escape(how))
    for lost in record.impossible:
        table.add_row(lost.op, "[red]impossible[/]", escape(f"{lost.reason} at {lost.loc}"))
    Console().print(table)
