"""What is generated for a model: captured, lowered for this backend, grouped; no device needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqmix_triton.codegen.generated import Generated
from seqmix_triton.session import generate

if TYPE_CHECKING:
    from seqmix.model import Model
    from seqmix_ir.graph import Module

__all__ = ["generated_for", "lowered_for"]


def lowered_for(model: Model | str) -> Module:
    """The module of a model as the backend runs it; a text names what ``seqmix.resolve`` reads."""
    from seqmix import hooks
    from seqmix.checkpoint import resolve
    from seqmix.choose import BackendLegality
    from seqmix.compile import program_of
    from seqmix_ir.passes import lower
    from seqmix_triton.backend import TritonBackend

    program = program_of(resolve(model) if isinstance(model, str) else model)
    legality = BackendLegality(TritonBackend(), "cuda")
    return lower(program.module, legality, hooks.rewrites("triton"))[0]


def generated_for(model: Model | str) -> Generated:
    """The kernels of a model."""
    return generate(lowered_for(model))
