"""Change of element type."""

from __future__ import annotations

from seqmix_ir.defn import Array, OpDef, Run, op
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


OPS: tuple[type[OpDef], ...] = (Cast,)
