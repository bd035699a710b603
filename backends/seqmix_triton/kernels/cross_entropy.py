"""Cross-entropy of rows of logits, read tile by tile in their own dtype; nothing is widened there.

N rows, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seqmix_triton.kernel import Case, Config, Constants, Kernel, power_of_two

__all__ = ["CROSS_ENTROPY_BACKWARD", "CROSS_ENTROPY_FORWARD"]


@triton.jit
def cross_entropy_forward(
    logits, targets, loss, lse, V: tl.constexpr, ACC: tl.constexpr, BLOCK_V: tl.constexpr
):  # fmt: skip
    """One row per program: the largest logit and the sum below it in one pass."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_V)
    # Below every logit but -inf, and finite: nothing is subtracted from itself.
    top = tl.full([BLOCK_V], -1e38, ACC)
    total = tl.zeros([BLOCK_V], ACC)
    for start in range(0, V, BLOCK_V):
        inside = start + column < V
        x = tl.load(logits + row * V + start + column, mask=inside, other=float("-inf")).to(ACC)
        above = tl.maximum(top, x)
        total = total * tl.exp(top - above) + tl.exp(x - above)
        top = above
    highest = tl.max(top, 0)
    found = highest + tl.log(tl.sum(total * tl.exp(top - highest), 0))
    target = tl.load(targets + row)
    known = (target >= 0) & (target < V)
    picked = tl.load(logits + row * V + target, mask=known, other=float("nan")).to(ACC)
    tl.store(lse + row, found)
    tl.store(loss + row, tl.where(target < 0, 0.0, found - picked))


@triton.jit
def cross_entropy_backward(
    logits, targets, lse, grad, dlogits,
    V: tl.constexpr, ACC: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One tile of one row per program."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    at = row * V + column
    target = tl.load(targets + row)
    g = tl.where(target < 0, 0.0, tl.load(grad + row).to(ACC))
    x = tl.load(logits + at, mask=column < V, other=0.0).to(ACC)
    share = tl.exp(x - tl.load(lse + row)) - tl.where(column == target, 1.0, 0.0)
    tl.store(dlogits + at, (share * g).to(dlogits.dtype.element_ty), mask=column < V)


def _default(dtype: torch.dtype, constants: Constants) -> Config:
    return Config({"BLOCK_V": min(4096, power_of_two(constants["V"], 16))}, 8, 2)


def _space(dtype: torch.dtype, constants: Constants) -> list[Config]:
    return [Config({"BLOCK_V": size}, warps, 2) for size in (2048, 8192) for warps in (4, 8, 16)]


_CASES = tuple(Case(f"vocabulary {V}", torch.bfloat16, {"V": V}) for V in (49152, 151_936))

CROSS_ENTROPY_FORWARD = Kernel(
    cross_entropy_forward,
    {"logits": "T", "targets": "I", "loss": "A", "lse": "A"},
    _default,
    _CASES,
    _space,
)
CROSS_ENTROPY_BACKWARD = Kernel(
    cross_entropy_backward,
    {"logits": "T", "targets": "I", "lse": "A", "grad": "A", "dlogits": "T"},
    _default,
    _CASES,
    _space,
)
