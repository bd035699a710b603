"""Change of element type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqmix_ir.defn import Array, Example, OpDef, Run, op
from seqmix_ir.types import TensorType, check_dtype

__all__ = ["OPS", "Cast"]


@op
class Cast(OpDef):
    """``x`` in another dtype: floats round to nearest even, floats to integers towards zero.

    Anything but 0 becomes ``True``. In the judge floats stay float64.
    """

    name = "cast"
    operands = ("x",)
    results = ("y",)
    dtype: str

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x.with_dtype(check_dtype(self.dtype)),)

    def evaluate(self, run: Run, x: Array) -> tuple[Array, ...]:
        return (x.astype(run.dtype(check_dtype(self.dtype)), copy=False),)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        x = rng.standard_normal((2, 5)) * 3
        floats = [Example(cls(dtype), (x,)) for dtype in ("f64", "f32", "f16", "bf16")]
        whole = [Example(cls(dtype), (x,)) for dtype in ("i64", "i32", "bool")]
        from_bool = Example(cls("f32"), (x > 0,))
        return [*floats, *whole, from_bool, Example(cls("u8"), (np.abs(x),))]


OPS: tuple[type[OpDef], ...] = (Cast,)
