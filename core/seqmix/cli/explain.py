"""``seqmix explain``: what a backend makes of every op."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
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


def explain_model(
    source: str, backend: str, rope: str | None, as_json: bool, save_kernels: Path | None = None
) -> int:
    """Print native, decomposed and impossible ops; 1 if there are impossible ones.

    For ``auto`` those of the backend that a trial chooses, and what the trial found. What is fused
    and generated follows; sources of generated kernels go to the folder ``save_kernels``.
    """
    from seqmix.backend import Backend
    from seqmix.choose import BackendLegality
    from seqmix.compile import program_of
    from seqmix_ir.passes import canonicalize, explain, lower

    check_backend_name(backend)
    model = load_model(load_checkpoint(source, rope))
    with progress("capturing"):
        program = program_of(model)
    chosen, notes = pick_backend(backend, program)
    module = canonicalize(program.module, hooks.rewrites(chosen.name))
    record = explain(module, BackendLegality(chosen, chosen.default_target()))
    if not record.impossible and type(chosen).describe is not Backend.describe:
        legality = BackendLegality(chosen, chosen.default_target())
        legal, _ = lower(program.module, legality, hooks.rewrites(chosen.name))
        notes = [*notes, *chosen.describe(legal, save_kernels)]
    elif save_kernels is not None:
        notes = [*notes, *chosen.describe(module, save_kernels)]
    if as_json:
        print(json.dumps(_content(chosen.name, record, notes), indent=2))
    else:
        _print(chosen.name, record, notes)
    return int(bool(record.impossible))


def _content(backend: str, record: Legalization, notes: list[str]) -> dict[str, Any]:
    return {
        "backend": backend,
        **({"notes": notes} if notes else {}),
        "native": dict(sorted(record.native.items())),
        "decomposed": dict(sorted(record.decomposed.items())),
        "impossible": [dataclasses.asdict(lost) for lost in record.impossible],
    }


def _print(backend: str, record: Legalization, notes: list[str]) -> None:
    table = Table("op", "on " + backend, Column("count or reason", overflow="fold"))
    for name, count in sorted(record.native.items()):
        table.add_row(name, "[green]native[/]", str(count))
    for name, how in sorted(record.decomposed.items()):
        table.add_row(name, "[yellow]decomposed[/]", escape(how))
    for lost in record.impossible:
        table.add_row(lost.op, "[red]impossible[/]", escape(f"{lost.reason} at {lost.loc}"))
    console = Console()
    console.print(table)
    for note in notes:
        console.print(note, style="yellow", markup=False, highlight=False)
