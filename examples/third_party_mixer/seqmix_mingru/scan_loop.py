"""A scan as a module of torch: a loop over time around a compiled step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["ScanLoop"]


class ScanLoop(nn.Module):
    """Runs ``body`` along an axis; :class:`seqmix_ir.ops.Scan` says what the attributes mean.

    The loop itself is left to Python, so that no length is compiled in; the step is compiled.
    """

    def __init__(
        self, body: nn.Module, *, carries: int, sequences: int, axis: int, reverse: bool
    ) -> None:
        super().__init__()
        self.body = body
        self._carries = carries
        self._sequences = sequences
        self._axis = axis
        self._reverse = reverse

    # torch does not annotate it.
    @torch.compiler.disable(recursive=False)  # type: ignore[no-untyped-call, untyped-decorator]
    def forward(self, operands: tuple[Tensor, ...], sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Carries, sequences and constants in this order; the last carries and the outputs."""
        first = self._carries + self._sequences
        carries, constants = operands[: self._carries], operands[first:]
        sequences = (x.unbind(self._axis) for x in operands[self._carries : first])
        steps = list(zip(*sequences, strict=True))
        outputs = []
        for slices in reversed(steps) if self._reverse else steps:
            out = self.body(*carries, *slices, *constants, *sizes)
            carries = out[: self._carries]
            outputs.append(out[self._carries :])
        ordered = outputs[::-1] if self._reverse else outputs
        return (*carries, *(torch.stack(ys, self._axis) for ys in zip(*ordered, strict=True)))
