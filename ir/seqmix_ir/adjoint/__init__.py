"""Reverse mode for ``scan``: the gradient of a recurrent cell as a graph of ordinary ops.

``adjoint(op)`` takes a ``scan`` op and derives two graphs in one module:

- ``forward``: inputs ``x0, x1, ..`` are the operands of the scan; outputs ``y0, y1, ..`` are its
  results, then ``s0, s1, ..`` what is saved for the gradient. Each ``s`` is stacked along axis 0.
- ``backward``: inputs ``x*`` (operands), ``s*`` (saved) and ``dy0, ..`` (cotangents, of the float
  results alone, numbered as the results are); outputs ``dx0, ..`` (of the operands that were asked
  for, numbered as the operands are).

In both, the sequential part is one ``scan`` op over axis 0 (the one of ``backward`` runs against
the one of ``forward``), with as little in its body as can be: what no carry feeds stands before it
and what feeds no carry behind it, both computed for all steps at once. The gradient of a constant
is no carry: its factors are stacked, and one product over all steps contracts them.

An op differentiates by its rule in :data:`RULES`, or by the rules of what it decomposes into. One
that has neither is an :class:`~seqmix_ir.errors.IRError` with the op and its location.
:func:`hoist` is the pass that takes out of the bodies of a module what may stand outside.
"""

from __future__ import annotations

from seqmix_ir.adjoint import layouts, pairs, pointwise, products, reductions
from seqmix_ir.adjoint.derive import Adjoint, adjoint
from seqmix_ir.adjoint.hoist import hoist
from seqmix_ir.adjoint.table import RULES, Rule, is_differentiable

_RULE_MODULES = (layouts, pairs, pointwise, products, reductions)
"""Importing these modules fills the table of rules."""

__all__ = ["RULES", "Adjoint", "Rule", "adjoint", "hoist", "is_differentiable"]
