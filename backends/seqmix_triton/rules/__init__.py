"""What each op runs as: the kernels of this package, or functions of torch."""

from __future__ import annotations

from collections.abc import Mapping

from seqmix import registry
from seqmix_ir.graph import Op
from seqmix_triton.rules import index, layout, mixers, pointwise, products, reductions
from seqmix_triton.run import Rule

__all__ = ["KERNELS", "all_rules", "missing_rule"]

KERNELS: Mapping[str, Rule] = mixers.KERNELS
"""Ops that run as Triton kernels."""

_OWN: Mapping[str, Rule] = {
    **pointwise.RULES,
    **layout.RULES,
    **index.RULES,
    **reductions.RULES,
    **products.RULES,
    **mixers.TORCH,
    **KERNELS,
}
_PREFIX = "triton:"


def all_rules() -> dict[str, Rule]:
    """The rules by name of the op; those that plugins register as ``triton:<op>`` go first."""
    found = dict(_OWN)
    for name in registry.names("lowerings"):
        if name.startswith(_PREFIX):
            found[name.removeprefix(_PREFIX)] = registry.get("lowerings", name)
    return found


def missing_rule(op: Op) -> str | None:
    """None, or why the op does not run as it stands."""
    if op.name in _OWN or f"{_PREFIX}{op.name}" in registry.names("lowerings"):
        return None
    return f"there is no triton rule for '{op.name}'"
