"""Softmax attention without the matrix of logits: which form takes how many rows.

Rows are the queries of all heads that share keys. Many rows go through in blocks
(:mod:`seqmix_tvm.kernels.flash_attention`), few of them one by one
(:mod:`seqmix_tvm.kernels.row_attention`), as in decoding.

B batch, H query heads, G key heads, S queries, T keys, K key size, V value size.
"""

from __future__ import annotations

from seqmix_ir.graph import Op
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.kernels.attention_rows import Rows
from seqmix_tvm.kernels.flash_attention import flash_attention
from seqmix_tvm.kernels.row_attention import row_attention
from seqmix_tvm.kernels.tile import TILE

__all__ = ["attention", "missing_attention"]


def missing_attention(op: Op) -> str | None:
    """Why there is no kernel for these operands: their sizes must be known."""
    q, v = op.operands[0], op.operands[2]
    if q is None or v is None or not isinstance(q.type.shape[3], int):
        return "the key size is not known"
    return None if isinstance(v.type.shape[3], int) else "the value size is not known"


def attention(kernel: Kernel, op: Op) -> None:
    """Blocks of rows where there are enough for a tile, else row by row."""
    rows = Rows(kernel, op)
    count = rows.count
    if isinstance(count, int):
        (flash_attention if count >= TILE else row_attention)(rows)
        return
    kernel.writer.choose(
        kernel.sizes(count) >= tvm.integer(TILE),
        lambda: flash_attention(rows),
        lambda: row_attention(rows),
    )
