"""``seqmix ir``: the graph as text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

from seqmix import registry
from seqmix.backend import Backend
from seqmix.cli.loading import load_checkpoint, load_model
from seqmix.cli.progress import progress
from seqmix.errors import ConfigError, did_you_mean

__all__ = ["print_ir"]

_STAGES = ("captured", "legalized")


def print_ir(
    source: str, stage: str, backend: str, rope: str | None, locs: bool, out: Path | None
) -> None:
    """Print the module at a stage, or write it to a file."""
    from seqmix.choose import BackendLegality
    from seqmix.compile import program_of
    from seqmix_ir.passes import lower
    from seqmix_ir.text import show

    if stage not in _STAGES:
        raise ConfigError(
            f"no stage '{stage}'{did_you_mean(stage, _STAGES)}; known: {', '.join(_STAGES)}"
        )
    model = load_model(load_checkpoint(source, rope))
    with progress("capturing"):
        module = program_of(model).module
        if stage == "legalized":
            chosen = cast(type[Backend], registry.get("backends", backend))()
            module, _ = lower(module, BackendLegality(chosen, chosen.default_target()))
    text = show(module, locs=locs)
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")
