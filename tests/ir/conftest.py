"""What the tests of the graph IR share: running one op on numpy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest

from seqmix_ir.builder import Builder
from seqmix_ir.defn import Array, OpDef
from seqmix_ir.graph import Value
from seqmix_ir.interpret import NUMPY_DTYPES, evaluate_op
from seqmix_ir.types import TensorType

Apply: TypeAlias = "Callable[..., tuple[Array, ...]]"


@pytest.fixture
def apply() -> Apply:
    """``apply(defn, *arrays, judge=False)``: the results of one op on arrays (None: absent)."""
    names = {numpy: name for name, numpy in NUMPY_DTYPES.items()}

    def run(defn: OpDef, *arrays: Array | None, judge: bool = False) -> tuple[Array, ...]:
        kept = [None if a is None else np.asarray(a) for a in arrays]
        values = [None if a is None else Value(TensorType(names[a.dtype], a.shape)) for a in kept]
        b = Builder()
        b.emit(defn, *values)
        return evaluate_op(b.ops[0], kept, judge=judge)

    return run
