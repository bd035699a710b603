"""The names and inputs that the ecosystem gives to a language model in ONNX.

A captured model takes ``input_ids``, ``positions`` (-1 at padding) and states. The file takes
``input_ids``, ``attention_mask [B, P + S]`` and ``position_ids [B, S]``, and calls the states
``past_key_values.{layer}.{name}`` and ``present.{layer}.{name}``. Positions are computed in the
graph: those of the new tokens are ``position_ids`` where the mask is 1, else -1; those of the past
are the running sum of the mask. So growing caches lose their ``key_positions``; a window's cache,
whose slots move, keeps them as a state.

The running sum numbers the past from 0. Attention by order (causal, no window) sees the same keys
from any first position, so a sequence that starts elsewhere decodes alike; for a graph that uses
key positions otherwise :mod:`seqmix_onnxruntime.positions` insists on a start at 0.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from seqmix.state import StateSpec
from seqmix_ir.builder import Builder
from seqmix_ir.dims import Size, dim
from seqmix_ir.graph import Graph, Op, Value
from seqmix_ir.ops import Add, Attention, Concat, CumSum, NotEqual, Slice, Where, constant
from seqmix_ir.types import Loc, TensorType

__all__ = ["Interface", "to_ecosystem"]

_ROLES = {"recurrent": "recurrent_state", "conv": "conv_state"}
_HERE = Loc("onnxruntime interface")


@dataclass(frozen=True)
class Interface:
    """How the inputs and outputs of a graph map to those of the file.

    Attributes:
        inputs: name in the file by name in the graph, states included.
        outputs: the same for outputs.
        positions: whether the file takes a mask and position ids instead of ``positions``.
        grown: graph names of the key positions that the file computes by itself.
        by_order: whether the graph only asks which of two positions comes first.

    """

    inputs: dict[str, str]
    outputs: dict[str, str]
    positions: bool = False
    grown: list[str] = field(default_factory=list)
    by_order: bool = False

    @staticmethod
    def plain(graph: Graph) -> Interface:
        """Every name as it is, but outputs that are called like an input."""
        taken = set(graph.inputs)
        outputs = {name: f"{name}.next" if name in taken else name for name in graph.outputs}
        return Interface({name: name for name in graph.inputs}, outputs)


def to_ecosystem(graph: Graph, specs: list[dict[str, StateSpec]]) -> tuple[Graph, Interface]:
    """The graph with the ecosystem's inputs, and the mapping of names."""
    grown = [
        f"state.{layer}.{key}"
        for layer, spec in enumerate(specs)
        for key, s in spec.items()
        if s.role == "key_positions" and s.grows
    ]
    names = _state_names(specs)
    inputs = graph.inputs
    b = Builder(_HERE)
    past: Size = dim("P") if grown else 0
    B, S = inputs["input_ids"].type.shape
    mask = Value(TensorType("i64", (B, past + S)), "attention_mask")
    ids = Value(TensorType("i64", (B, S)), "position_ids")
    env = {inputs["positions"]: _new_positions(b, mask, ids, past)}
    if grown:
        kept = _past_positions(b, mask, past)
        env.update({inputs[name]: kept for name in grown})
    params = [inputs["input_ids"], mask, ids]
    for name, value in inputs.items():
        if name not in ("input_ids", "positions") and value not in env:
            params.append(Value(value.type, f"past_key_values.{names[name]}"))
            env[value] = params[-1]
    for op in graph.block.ops:
        operands = tuple(None if v is None else env.get(v, v) for v in op.operands)
        b.append(Op(op.defn, operands, op.results, op.body, op.loc))
    results = {n: env.get(v, v) for n, v in graph.results.items() if n not in grown}
    outputs = {n: f"present.{names[n]}" if n in names else n for n in results}
    block = b.block(params, list(results.values()))
    changed = dataclasses.replace(graph, block=block, outputs=tuple(outputs.values()))
    renamed = {n: f"past_key_values.{names[n]}" for n in names if n not in grown}
    by_order = _asks_for_order_only(graph, [inputs[name] for name in grown])
    kept_names = {"input_ids": "input_ids", **renamed}
    return changed, Interface(kept_names, outputs, True, grown, by_order)


def _asks_for_order_only(graph: Graph, past: list[Value]) -> bool:
    """Whether past positions are joined with the new ones and only attention looks at those."""
    known = set(past)
    for op in graph.block.ops:
        if known.isdisjoint(op.operands):
            continue
        if isinstance(op.defn, Concat):
            known.update(op.results)
        elif not _is_causal(op, known):
            return False
    return True


def _is_causal(op: Op, known: set[Value]) -> bool:
    """An attention without a window that has key positions of ``known`` at their place."""
    places = [i for i, value in enumerate(op.operands) if value in known]
    defn = op.defn
    return isinstance(defn, Attention) and defn.causal and not defn.window and places == [4]


def _state_names(specs: list[dict[str, StateSpec]]) -> dict[str, str]:
    """``{layer}.{ecosystem's name}`` by state; a role that a layer has twice keeps its own keys."""
    names: dict[str, str] = {}
    for layer, spec in enumerate(specs):
        roles = [s.role for s in spec.values()]
        for key, s in spec.items():
            alone = roles.count(s.role) == 1
            names[f"state.{layer}.{key}"] = f"{layer}.{_ROLES.get(s.role, key) if alone else key}"
    return names


def _new_positions(b: Builder, mask: Value, ids: Value, past: Size) -> Value:
    """``position_ids`` where the new part of the mask is set, else -1."""
    total = mask.type.shape[1]
    new = mask if past == 0 else b(Slice(1, past, total), mask)
    zero, padding = constant(b, 0, "i64"), constant(b, -1, "i64")
    return b(Where(), b(NotEqual(), new, zero), ids, padding)


def _past_positions(b: Builder, mask: Value, past: Size) -> Value:
    """The running count of set entries of the past part of the mask, less 1; else -1."""
    old = b(Slice(1, 0, past), mask)
    zero, padding = constant(b, 0, "i64"), constant(b, -1, "i64")
    count = b(Add(), b(CumSum(1), old), padding)
    return b(Where(), b(NotEqual(), old, zero), count, padding)
