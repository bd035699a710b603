"""Passes: functions from modules to modules."""

from __future__ import annotations

from seqmix_ir.passes.canonicalize import canonicalize
from seqmix_ir.passes.cse import cse
from seqmix_ir.passes.dce import dce
from seqmix_ir.passes.fold import fold
from seqmix_ir.passes.group import Fused, Fusion, Grouping, group
from seqmix_ir.passes.group_traffic import Traffic, traffic
from seqmix_ir.passes.layout import unify_layouts
from seqmix_ir.passes.legalize import Impossible, Legality, Legalization, explain, legalize
from seqmix_ir.passes.pipeline import STEPS, Watcher, lower
from seqmix_ir.passes.reshapes import RESHAPE_RULES
from seqmix_ir.passes.rewrite import Rule, map_blocks, rewrite_block, rewrite_module
from seqmix_ir.passes.simplify import NAMED_RULES
from seqmix_ir.passes.specialise import specialise
from seqmix_ir.passes.tighten import tighten
from seqmix_ir.passes.trivial import TRIVIAL_RULES

__all__ = [
    "NAMED_RULES",
    "RESHAPE_RULES",
    "STEPS",
    "TRIVIAL_RULES",
    "Fused",
    "Fusion",
    "Grouping",
    "Impossible",
    "Legality",
    "Legalization",
    "Rule",
    "Traffic",
    "Watcher",
    "canonicalize",
    "cse",
    "dce",
    "explain",
    "fold",
    "group",
    "legalize",
    "lower",
    "map_blocks",
    "rewrite_block",
    "rewrite_module",
    "specialise",
    "tighten",
    "traffic",
    "unify_layouts",
]
