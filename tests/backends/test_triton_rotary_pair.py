"""Rotations of queries and keys in one launch: the kernel, and the pairs found in graphs.

B batch, H query heads, G key heads, S queries, T keys, K head size, R rotated size.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.backends.triton_kernels import TOLERANCE, close, poisoned
from tests.core import tiny
from torch import Tensor

import seqmix
from seqmix.ops import rotary
from seqmix_ir.builder import Builder
from seqmix_ir.graph import Block, Graph, Module, Value
from seqmix_ir.ops.activation import Softplus
from seqmix_ir.ops.rotary import Rotary
from seqmix_ir.types import TensorType
from seqmix_triton.backend import TritonBackend
from seqmix_triton.ops.rotary_pair import rotary_pair, rotary_pair_at
from seqmix_triton.rotary_pairs import pair_rotaries
from seqmix_triton.session import TritonExecutable

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
DYNAMIC = {"kind": "dynamic-yarn", "original_context_length": 5, "mode": "per_window"}


def tables(positions: Tensor, inv_freq: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    angles = positions.clamp(min=0).double().unsqueeze(-1) * inv_freq
    return angles.cos() * factor, angles.sin() * factor


@pytest.mark.parametrize(
    ("K", "interleaved", "dtype"),
    [(16, False, F32), (20, True, BF16), pytest.param(22, False, F64, marks=pytest.mark.full)],
)
def test_tables_made_in_the_kernel(K: int, interleaved: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 7, 5, K).transpose(1, 2).to(dtype)
    k = torch.randn(2, 2, 19, K).to(dtype)
    places = torch.randint(-1, 1_000_000, (2, 7)), torch.randint(-1, 300, (2, 19))
    inv_freq = torch.rand(2, 1, 8, dtype=F64) ** 3
    factor = 0.5 + torch.rand(2, 1, 1, dtype=F64)
    with poisoned():
        found = rotary_pair_at(q, k, *places, inv_freq, factor, interleaved=interleaved)
    for x, positions, turned in zip((q, k), places, found, strict=True):
        made = tables(positions, inv_freq, factor)
        truth = rotary(x.double(), *made, interleaved=interleaved)
        assert turned.dtype == dtype
        close(turned, truth, "turned")


def test_given_tables_and_a_factor_of_one() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(1, 3, 9, 12), torch.randn(1, 1, 9, 12)
    places, inv_freq = torch.arange(9).unsqueeze(0), torch.tensor([1.0, 0.1, 0.01], dtype=F64)
    cos, sin = tables(places, inv_freq, torch.ones((), dtype=F64))
    truth = [rotary(x.double(), cos, sin) for x in (q, k)]
    given = rotary_pair(q, k, cos.float(), sin.float())
    made = rotary_pair_at(q, k, places, places, inv_freq, None)
    for turned in (given, made):
        for one, other in zip(turned, truth, strict=True):
            close(one, other, "turned")


def rotations(between: bool) -> Module:
    """Two by the same unknown tables; with a reader of the first one between them, or without."""
    shapes = [(1, 2, 3, 4), (1, 1, 3, 4), (1, 3, 2), (1, 3, 2)]
    q, k, cos, sin = (Value(TensorType("f32", shape)) for shape in shapes)
    b = Builder()
    turned = b(Rotary(), q, cos, sin)
    read = b(Softplus(), turned if between else q)
    results = (read, b(Rotary(), k, cos, sin), turned)
    block: Block = b.block((q, k, cos, sin), results)
    return Module("pair", (Graph("pair", block, ("a", "b", "c")),))


def test_a_pair_by_given_tables_unless_the_first_is_read_before() -> None:
    names = [op.name for op in pair_rotaries(rotations(False)).graphs[0].block.ops]
    assert names == ["softplus", "triton.rotary_pair"]
    apart = rotations(True)
    assert pair_rotaries(apart) is apart


@pytest.mark.parametrize(
    "position", [DYNAMIC, pytest.param({"kind": "xpos"}, marks=pytest.mark.full)]
)
def test_a_model_has_one_op_per_layer_no_tables_and_torchs_logits(position: dict[str, Any]) -> None:
    model = tiny.model([tiny.ATTENTION], position=position)
    executable = seqmix.compile(model, TritonBackend(), cache=False)
    assert isinstance(executable, TritonExecutable)
    assert executable.report.kernels["rotary"] == 4
    names = [op.name for op in executable.generated.module.graph("forward").block.walk()]
    assert [name for name in names if "rotary" in name] == ["triton.rotary_pair_at"] * 2
    assert not {"cos", "sin"} & set(names)
    ids, positions = tiny.tokens(2, 9)
    logits = []
    for run in (executable, model):
        # The scale is that of a call's length, so the calls must be the same.
        _, states = run(ids[:, :6], positions[:, :6])
        logits.append(run(ids[:, 6:], positions[:, 6:], states)[0])
    error = (logits[0] - logits[1]).abs().max().item()
    assert error < 10 * TOLERANCE[F32] * logits[1].abs().max().item()
