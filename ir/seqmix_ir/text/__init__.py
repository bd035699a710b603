"""The text form of the IR."""

from __future__ import annotations

from seqmix_ir.text.parse import parse
from seqmix_ir.text.same import same
from seqmix_ir.text.show import FORMAT, fingerprint, show, show_graph

__all__ = ["FORMAT", "fingerprint", "parse", "same", "show", "show_graph"]
