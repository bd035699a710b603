"""The emitter table: what of the IR has an ONNX form, one module per family."""

from __future__ import annotations

from seqmix import registry
from seqmix_onnxruntime.emit import Emit
from seqmix_onnxruntime.ops import (
    attention,
    conv,
    cumulative,
    fourier,
    index,
    long_range,
    matrix,
    mixers,
    ordering,
    pointwise,
    scan,
    shaping,
    transcendental,
)

__all__ = ["EMITTERS", "all_emitters", "has_emitter"]

_PREFIX = "onnxruntime:"

EMITTERS: dict[str, Emit] = {
    **attention.EMITTERS,
    **conv.EMITTERS,
    **cumulative.EMITTERS,
    **fourier.EMITTERS,
    **index.EMITTERS,
    **long_range.EMITTERS,
    **matrix.EMITTERS,
    **mixers.EMITTERS,
    **ordering.EMITTERS,
    **pointwise.EMITTERS,
    **scan.EMITTERS,
    **shaping.EMITTERS,
    **transcendental.EMITTERS,
}


def all_emitters() -> dict[str, Emit]:
    """The emitters by name of the op; those that plugins register as ``onnxruntime:<op>`` go first.

    Such a plugin is imported when its op is met.
    """
    return _Emitters()


def has_emitter(name: str) -> bool:
    """Whether an op has a form in ONNX, here or in a plugin."""
    return name in EMITTERS or f"{_PREFIX}{name}" in registry.names("lowerings")


class _Emitters(dict[str, Emit]):
    """The table, with what plugins add looked up at the first use."""

    def __missing__(self, name: str) -> Emit:
        lowering = f"{_PREFIX}{name}"
        known = lowering in registry.names("lowerings")
        emit: Emit = registry.get("lowerings", lowering) if known else EMITTERS[name]
        self[name] = emit
        return emit
