"""Rules that compute one element of an op's result from elements of its operands."""

from collections.abc import Mapping

from seqmix_tvm.frame import Rule
from seqmix_tvm.rules import layout, pointwise

__all__ = ["RULES"]

RULES: Mapping[str, Rule] = {**layout.RULES, **pointwise.RULES}
