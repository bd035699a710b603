"""What each op runs as: the kernels of this package, or functions of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqmix import registry
from seqmix.errors import PluginError
from seqmix_ir.graph import Op
from seqmix_triton import rotary_pairs
from seqmix_triton.lowering import PREFIX
from seqmix_triton.rules import index, layout, mixers, pointwise, products, reductions
from seqmix_triton.run import GraphRun, Rule

__all__ = ["KERNELS", "all_rules", "kernel_names", "missing_rule"]

KERNELS: Mapping[str, Rule] = mixers.KERNELS
"""Ops that run as Triton kernels of this package."""

_OWN: Mapping[str, Rule] = {
    **pointwise.RULES,
    **layout.RULES,
    **index.RULES,
    **reductions.RULES,
    **products.RULES,
    **mixers.TORCH,
    **KERNELS,
}


def all_rules() -> dict[str, Rule]:
    """The rules by name of the op; those that plugins register as ``triton:<op>`` go first."""
    found = {**_OWN, **rotary_pairs.RULES}
    for name in registry.names("lowerings"):
        if name.startswith(PREFIX):
            found[name.removeprefix(PREFIX)] = _rule_of_plugin(name)
    return found


def kernel_names() -> frozenset[str]:
    """The ops that run as Triton kernels, those of plugins included."""
    plugins = (n for n in registry.names("lowerings") if n.startswith(PREFIX))
    return frozenset(KERNELS) | {name.removeprefix(PREFIX) for name in plugins}


def missing_rule(op: Op) -> str | None:
    """None, or why the op does not run as it stands."""
    if op.name in _OWN or f"{PREFIX}{op.name}" in registry.names("lowerings"):
        return None
    return f"there is no triton rule for '{op.name}'"


def _rule_of_plugin(name: str) -> Rule:
    """A plugin's rule; one that cannot be loaded disturbs nobody who does not run it."""
    try:
        rule: Rule = registry.get("lowerings", name)
    except PluginError as error:
        broken = error
    else:
        return rule

    def refuse(run: GraphRun, op: Op, *operands: Any) -> Any:
        raise broken

    return refuse
