"""``seqmix export``: a folder that runs by itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp

from rich.console import Console

from seqmix.cli.loading import compile_model, load_checkpoint, load_model
from seqmix.cli.progress import progress
from seqmix.errors import ConfigError

__all__ = ["export_model"]


def export_model(source: str, out: Path, backend: str, rope: str | None, force: bool) -> None:
    """Write the compiled model to ``out``, which appears whole or not at all."""
    if out.exists() and not force:
        raise ConfigError(f"{out} exists; choose another folder, or replace it with --force")
    executable = compile_model(load_model(load_checkpoint(source, rope)), backend)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        with progress(f"writing {out}"):
            executable.save(temporary)
        shutil.rmtree(out, ignore_errors=True)
        temporary.chmod(0o755)
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    console = Console()
    for file in sorted(out.iterdir()):
        console.print(f"{file}  {file.stat().st_size / 1e6:.1f} MB")
