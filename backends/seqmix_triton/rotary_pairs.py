"""Pairs of rotations in a graph, of queries and of keys, become one op each before it is run.

The op lives in a running graph alone: what is saved has the rotations apart, as any backend does.

B batch, H query heads, G key heads, S queries, T keys, K head size, R rotated size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from seqmix_ir.defn import OpDef, op
from seqmix_ir.graph import Block, Module, Op, Value
from seqmix_ir.passes.dce import dce
from seqmix_ir.passes.rewrite import map_blocks
from seqmix_ir.types import TensorType
from seqmix_triton.ops.rotary_pair import rotary_pair, rotary_pair_at
from seqmix_triton.rotary_tables import Tables, find_tables
from seqmix_triton.run import GraphRun, Rule

__all__ = ["RULES", "RotaryPair", "RotaryPairAt", "pair_rotaries"]


@op
class RotaryPair(OpDef):
    """Two rotations, of q ``[B, H, S, K]`` and k ``[B, G, S, K]``, by the same tables."""

    name = "triton.rotary_pair"
    operands = ("q", "k", "cos", "sin")
    results = ("turned_q", "turned_k")
    interleaved: bool = False

    def infer(
        self, q: TensorType, k: TensorType, cos: TensorType, sin: TensorType
    ) -> tuple[TensorType, ...]:
        return q, k


@op
class RotaryPairAt(OpDef):
    """Two rotations by tables of the same frequencies and factor, each at its own positions.

    Operands are those of :func:`~seqmix_triton.ops.rotary_pair.rotary_pair_at`.
    """

    name = "triton.rotary_pair_at"
    operands = ("q", "k", "q_positions", "k_positions", "inv_freq", "factor?")
    results = ("turned_q", "turned_k")
    interleaved: bool = False

    def infer(self, q: TensorType, k: TensorType, *more: Any) -> tuple[TensorType, ...]:
        return q, k


def pair_rotaries(module: Module) -> Module:
    """The module with each rotation and the next one that fits it as one op.

    They fit when they have the same tables, or tables of the same frequencies and factor, and when
    nothing between them reads the first. Tables that nothing reads any more are gone; the module
    itself is returned where there is no pair.
    """
    found = map_blocks(module, _pair_block)
    return module if found is module else dce(found)


@dataclass(frozen=True)
class _Waiting:
    """A rotation that has found none to go with yet."""

    op: Op
    tables: Tables | None


def _pair_block(block: Block) -> Block:
    made_by = {value: op for op in block.ops for value in op.results}
    ops: list[Op] = []
    waiting: list[_Waiting] = []
    changed = False
    for step in block.ops:
        # What has been read is needed where it stands.
        waiting = [w for w in waiting if w.op.results[0] not in step.operands]
        if step.name != "rotary":
            ops.append(step)
            continue
        here = _Waiting(step, find_tables(step, made_by))
        partner = next((w for w in waiting if _fit(w, here)), None)
        if partner is None:
            waiting.append(here)
            ops.append(step)
            continue
        waiting.remove(partner)
        ops.remove(partner.op)
        ops.append(_joined(partner, here))
        changed = True
    return Block(block.params, tuple(ops), block.results) if changed else block


def _fit(one: _Waiting, other: _Waiting) -> bool:
    q, k = one.op.values[0].type, other.op.values[0].type
    alike = one.op.defn == other.op.defn and q.dtype == k.dtype
    if not alike or (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]):
        return False
    if one.op.values[1:] == other.op.values[1:]:
        return True
    if one.tables is None or other.tables is None:
        return False
    return one.tables.spectrum == other.tables.spectrum


def _joined(one: _Waiting, other: _Waiting) -> Op:
    """One op with the results of both; in the place of the latter."""
    interleaved = one.op.defn.attributes()["interleaved"]
    q, k = one.op.values[0], other.op.values[0]
    results = (*one.op.results, *other.op.results)
    if one.tables is None or other.tables is None:
        operands: tuple[Value | None, ...] = (q, k, *one.op.values[1:])
        return Op(RotaryPair(interleaved), operands, results, None, other.op.loc)
    positions = (one.tables.positions, other.tables.positions)
    operands = (q, k, *positions, *one.tables.spectrum)
    return Op(RotaryPairAt(interleaved), operands, results, None, other.op.loc)


def _run_pair(run: GraphRun, op: Op, *operands: Tensor) -> tuple[Tensor, Tensor]:
    return rotary_pair(*operands, **op.defn.attributes())


def _run_pair_at(run: GraphRun, op: Op, *operands: Any) -> tuple[Tensor, Tensor]:
    return rotary_pair_at(*operands, **op.defn.attributes())


RULES: Mapping[str, Rule] = {
    RotaryPair.name: _run_pair,
    RotaryPairAt.name: _run_pair_at,
}
