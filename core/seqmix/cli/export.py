"""``seqmix export``: a folder that runs by itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp

from rich.console import Console

from seqmix.cli.loading import check_backend_name, compile_model, load_checkpoint, load_model
from seqmix.errors import ConfigError
from seqmix.progress import progress

__all__ = ["export_model"]


def export_model(
    source: str,
    out: Path,
    backend: str,
    rope: str | None,
    force: bool,
    opset: int | None = None,
    contrib: bool = False,
) -> None:
    """Write the compiled model to ``out``, which appears whole or not at all.

    An ONNX file is for any runtime, unless ``contrib`` allows the operators of ONNX Runtime alone.
    """
    _check_place(out, force)
    check_backend_name(backend)
    options = _onnx_options(backend, opset, contrib)
    executable = compile_model(load_model(load_checkpoint(source, rope)), backend, options)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        with progress(f"writing {out}"):
            executable.save(temporary)
        if out.exists():
            shutil.rmtree(out)
        temporary.chmod(0o755)
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    console = Console()
    for file in sorted(out.iterdir()):
        console.print(f"{file}  {file.stat().st_size / 1e6:.1f} MB")


def _onnx_options(backend: str, opset: int | None, contrib: bool) -> dict[str, int | bool]:
    """The options of the backend that writes ONNX files; ConfigError where they mean nothing."""
    if backend == "onnxruntime":
        return {"contrib": contrib, **({} if opset is None else {"opset": opset})}
    if opset is not None or contrib:
        raise ConfigError(
            f"--opset and --contrib say how an ONNX file is written, found --backend {backend}; "
            "use --backend onnxruntime, or leave them out"
        )
    return {}


def _check_place(out: Path, force: bool) -> None:
    """ConfigError when something would be lost; only an earlier export may be replaced."""
    from seqmix.interface import MANIFEST

    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / MANIFEST).is_file():
        raise ConfigError(f"{out} exists and is no earlier export; choose another folder")
    if not force:
        raise ConfigError(f"{out} exists; choose another folder, or replace it with --force")
