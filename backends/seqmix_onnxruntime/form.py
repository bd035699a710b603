"""Which operators a file may use: the opset of the standard domain, and ONNX Runtime's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnx import helper

from seqmix.errors import BackendError
from seqmix_ir.graph import Op

__all__ = ["CONTRIB", "Form", "form_of", "opset_imports", "too_new"]

CONTRIB = "com.microsoft"
_OLDEST, _NEWEST = 18, 27
"""From the first with axes as inputs of the reductions to what ONNX Runtime 1.32 reads."""

_SINCE: Mapping[str, int] = {
    "attention": 23,
    "gelu": 20,
    "linear_attention": 27,
    "rms_norm": 23,
    "rotary": 23,
}
"""The opset from which on the standard domain has an operator for the op."""

_ALSO_CONTRIB = frozenset({"linear_attention"})
"""Ops for which ONNX Runtime has an operator of its own."""


@dataclass(frozen=True)
class Form:
    """What a file may contain.

    23 is the first opset with Attention, RMSNormalization and RotaryEmbedding; later ones run no
    faster here. ``contrib`` allows operators that only ONNX Runtime knows.
    """

    opset: int = 23
    contrib: bool = True
    target: str = "cpu"
    """Where the file will run: which of several forms is faster depends on it."""

    @property
    def ir_version(self) -> int:
        """The version of the file format: the oldest that allows the opset, at least 8."""
        return 11 if self.opset >= 23 else 8


def form_of(options: Mapping[str, Any], target: str = "cpu") -> Form:
    """The form that a backend's options ask for; BackendError for an opset without support."""
    form = Form(options.get("opset", Form.opset), options.get("contrib", Form.contrib), target)
    if not _OLDEST <= form.opset <= _NEWEST:
        raise BackendError(
            f"backend 'onnxruntime': opset {form.opset} is not supported, expected {_OLDEST} to "
            f"{_NEWEST}; leave the option out for {Form.opset}"
        )
    return form


def too_new(op: Op, form: Form) -> str | None:
    """Why a file of this form has no operator for the op, if so."""
    since = _SINCE.get(op.name, 0)
    if form.opset >= since or (form.contrib and op.name in _ALSO_CONTRIB):
        return None
    return f"ONNX has it from opset {since} on, the file has opset {form.opset}"


def opset_imports(form: Form, domains: set[str]) -> list[Any]:
    """The operator sets that a file with nodes of these domains declares."""
    more = [helper.make_opsetid(CONTRIB, 1)] if CONTRIB in domains else []
    return [helper.make_opsetid("", form.opset), *more]
