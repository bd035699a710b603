"""``seqmix export``: a folder that runs by itself."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.filesize import decimal

from seqmix.cli.loading import check_backend_name, compile_model, load_checkpoint, load_model
from seqmix.errors import CheckpointError, ConfigError
from seqmix.interface import MANIFEST
from seqmix.progress import progress
from seqmix.whole_folder import whole_folder

if TYPE_CHECKING:
    from seqmix.checkpoint import Checkpoint

__all__ = ["export_model"]


def export_model(
    source: str,
    out: Path,
    backend: str,
    rope: str | None,
    force: bool,
    opset: int | None = None,
    contrib: bool = False,
    weights: str | None = None,
    runtime: bool = False,
    save_kernels: Path | None = None,
) -> None:
    """Write the compiled model and its tokenizer to ``out``, which appears whole or not at all.

    An ONNX file is for any runtime, unless ``contrib`` allows the operators of ONNX Runtime alone,
    or ``weights`` needs them. ``weights`` and ``runtime`` are options of backends that have them.
    """
    _check_place(out, force)
    check_backend_name(backend)
    # Smaller weights are read by operators that only ONNX Runtime has: then the others may be too.
    own = contrib or (weights is not None and backend == "onnxruntime")
    options: dict[str, Any] = _onnx_options(backend, opset, own)
    options |= {} if weights is None else {"weights": weights}
    options |= {"runtime": True} if runtime else {}
    options |= {} if save_kernels is None else {"save_kernels": str(save_kernels)}
    checkpoint = load_checkpoint(source, rope)
    executable = compile_model(load_model(checkpoint), backend, options)
    with progress(f"writing {out}"), whole_folder(out, MANIFEST, keep=False) as folder:
        _save_tokenizer(checkpoint, folder)
        executable.save(folder)
    console = Console()
    for file in sorted(out.iterdir()):
        console.print(f"{file}  {decimal(file.stat().st_size)}")
    for note in executable.report.notes if weights is not None else ():
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def _save_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the tokenizer where there is one that can be written; a warning says why it failed."""
    from seqmix.checkpoint import StorableTokenizer

    if not isinstance(checkpoint.tokenizer, StorableTokenizer):
        return
    try:
        checkpoint.tokenizer.save(folder)
    except CheckpointError as error:
        warnings.warn(f"the tokenizer is not in the folder: {error}", stacklevel=2)


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
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / MANIFEST).is_file():
        raise ConfigError(f"{out} exists and is no earlier export; choose another folder")
    if not force:
        raise ConfigError(f"{out} exists; choose another folder, or replace it with --force")
