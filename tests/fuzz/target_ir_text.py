"""The text form of the IR: parsed, shown again, and verified, which most edited texts are not."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tests.fuzz.target import Target

from seqmix import registry
from seqmix_ir.errors import IRError
from seqmix_ir.text import parse, show
from seqmix_ir.verifier import verify

__all__ = ["TARGET"]

GOLDEN = Path(__file__).parent.parent / "ir" / "golden" / "text"


def make(folder: Path) -> None:
    """One text with many literals and sizes, and one with a body."""
    for name in ("every_literal", "sizes", "scan_body", "dims_header", "names"):
        text = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


def load(folder: Path) -> None:
    """Every text that is there; what parses is shown and read back."""
    failed: Exception | None = None
    for path in sorted(p for p in folder.iterdir() if p.is_file() and not p.is_symlink()):
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            module = parse(text, registry.op_table(), str(path))
            parse(show(module), registry.op_table())
            with suppress(IRError):
                verify(module)
        except IRError as error:
            failed = error
    if failed is not None:
        raise failed


TARGET = Target("ir_text", make, load)
