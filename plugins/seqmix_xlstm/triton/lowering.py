"""The mLSTM cell on the backend ``triton``: what the entry point ``triton:xlstm.mlstm`` names.

Nothing of Triton is imported before it is used: listing plugins works without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqmix_triton.lowering import Lowering

if TYPE_CHECKING:
    from seqmix_triton.lowering import Kernels

__all__ = ["MLSTM"]


def _load() -> Kernels:
    from seqmix_xlstm.triton.implementation import KERNELS

    return KERNELS


MLSTM = Lowering(_load)
