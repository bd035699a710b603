"""Constant folding: what depends on constants alone is computed now, by the op's definition."""

from __future__ import annotations

import math

import numpy as np

from seqmix_ir.builder import Builder
from seqmix_ir.defn import Array
from seqmix_ir.graph import Module, Op, Value
from seqmix_ir.interpret import NUMPY_DTYPES, evaluate_op
from seqmix_ir.ops import Constant, Expand, Iota, SizeOf, Weight, constant
from seqmix_ir.passes.rewrite import rewrite_module

__all__ = ["LARGEST", "fold"]

LARGEST = 64
"""The most elements that a folded constant may have: larger tables stay ops."""

# An expanded constant is cheaper than the table it stands for.
_KEPT = (Constant, Weight, Expand)


def fold(module: Module) -> Module:
    """Replace ops on constants by their results, where these have a fixed, small shape."""
    return rewrite_module(module, _fold_op)


def _fold_op(b: Builder, op: Op) -> tuple[Value, ...] | None:
    if isinstance(op.defn, _KEPT) or op.body is not None or not _small(op):
        return None
    if not op.operands and not isinstance(op.defn, SizeOf | Iota):
        return None
    producers = [b.producer(v, Constant) for v in op.operands]
    if any(p is None and v is not None for p, v in zip(producers, op.operands, strict=True)):
        return None
    arrays = [None if p is None else _array(p) for p in producers]
    try:
        results = evaluate_op(op, arrays)
    except Exception:
        # A size without a value, an index out of range, an op that cannot take these operands:
        # whatever it is, it belongs to the run, where the error is explained.
        return None
    return tuple(
        constant(b, array, value.type.dtype)
        for array, value in zip(results, op.results, strict=True)
    )


def _small(op: Op) -> bool:
    for value in op.results:
        sizes = [s for s in value.type.shape if isinstance(s, int)]
        if len(sizes) != value.type.rank or math.prod(sizes) > LARGEST or 0 in sizes:
            return False
    return True


def _array(op: Op) -> Array:
    return np.array(op.defn.attributes()["value"], NUMPY_DTYPES[op.results[0].type.dtype])
