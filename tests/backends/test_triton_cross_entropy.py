"""The loss as a Triton kernel, in the interpreter. N places, V vocabulary."""

from __future__ import annotations

import pytest
import torch
from tests.backends.triton_kernels import check

from seqmix.ops import cross_entropy
from seqmix_triton.kernel import Config
from seqmix_triton.kernels.cross_entropy import CROSS_ENTROPY_BACKWARD, CROSS_ENTROPY_FORWARD
from seqmix_triton.ops.cross_entropy import cross_entropy_backward, cross_entropy_forward

SMALL = Config({"BLOCK_V": 16}, 1, 1)


def drawn(N: int, V: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    targets = torch.randint(0, V, (N,))
    targets[N // 2] = -100
    return (4 * torch.randn(N, V)).to(dtype), targets


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        *(pytest.param(d, marks=pytest.mark.full) for d in (torch.float16, torch.float64)),
    ],
)
@pytest.mark.parametrize(("N", "V"), [(3, 1), (1, 15), (5, 16), (4, 65)])
def test_losses_and_gradients(N: int, V: int, dtype: torch.dtype) -> None:
    with CROSS_ENTROPY_FORWARD.forced(SMALL), CROSS_ENTROPY_BACKWARD.forced(SMALL):
        check(cross_entropy, cross_entropy_forward, cross_entropy_backward, drawn(N, V, dtype))


def test_default_tiles() -> None:
    operands = drawn(3, 40, torch.float32)
    check(cross_entropy, cross_entropy_forward, cross_entropy_backward, operands)


def test_logits_of_minus_infinity_and_targets_out_of_range() -> None:
    logits, targets = drawn(4, 40, torch.float32)
    logits[0, :33] = -torch.inf
    targets[0], targets[1], targets[2] = 35, 40, -1
    with CROSS_ENTROPY_FORWARD.forced(SMALL):
        loss, _ = cross_entropy_forward(logits, targets)
    wanted = torch.nn.functional.cross_entropy(logits[:1], targets[:1])
    torch.testing.assert_close(loss[0], wanted)
    assert loss[1].isnan()
    assert loss[2] == 0
