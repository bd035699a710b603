"""``seqmix ir``: the graph as text."""

from __future__ import annotations

import sys
from pathlib import Path

from seqmix import hooks
from seqmix.cli.loading import check_backend_name, load_checkpoint, load_model, pick_backend
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
    if out is not None and not out.absolute().parent.is_dir():
        raise ConfigError(f"{out}: there is no folder {out.absolute().parent}; make it first")
    if stage == "legalized":
        check_backend_name(backend)
    model = load_model(load_checkpoint(source, rope))
    with progress("capturing"):
        module = program_of(model).module
        if stage == "legalized":
            chosen = pick_backend(backend, module)
            legality = BackendLegality(chosen, chosen.default_target())
            module, _ = lower(module, legality, hooks.rewrites(chosen.name))
    text = show(module, locs=locs)
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")
