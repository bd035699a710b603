"""Copies of a branch's ops on other inputs and weights, at another path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seqmix_ir.builder import Builder
from seqmix_ir.graph import Block, Op, Value
from seqmix_ir.types import Loc

__all__ = ["Template", "write_template"]


@dataclass(frozen=True)
class Template:
    """The ops of one branch, on values that stand for its inputs."""

    path: str
    inputs: tuple[Value, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Value, ...]


def write_template(
    b: Builder,
    template: Template,
    inputs: Sequence[Value],
    weights: Mapping[Value, Value],
    path: str,
) -> tuple[Value, ...]:
    """Append the ops with new results, and return the outputs."""
    env = {**dict(zip(template.inputs, inputs, strict=True)), **weights}
    for op in _copied(template.ops, env, template.path, path):
        b.append(op)
    return tuple(env.get(v, v) for v in template.outputs)


def _copied(ops: Sequence[Op], env: dict[Value, Value], old: str, new: str) -> list[Op]:
    """The ops with operands by ``env`` and results of their own, which ``env`` learns."""
    copies = []
    for op in ops:
        operands = tuple(None if v is None else env.get(v, v) for v in op.operands)
        results = tuple(map(_fresh, op.results))
        body = None if op.body is None else _copied_body(op.body, old, new)
        copies.append(Op(op.defn, operands, results, body, _moved(op.loc, old, new)))
        env.update(zip(op.results, results, strict=True))
    return copies


def _copied_body(body: Block, old: str, new: str) -> Block:
    """A body is isolated: it sees its own parameters only."""
    params = tuple(map(_fresh, body.params))
    env = dict(zip(body.params, params, strict=True))
    ops = tuple(_copied(body.ops, env, old, new))
    return Block(params, ops, tuple(env.get(v, v) for v in body.results))


def _fresh(value: Value) -> Value:
    return Value(value.type, value.hint)


def _moved(loc: Loc, old: str, new: str) -> Loc:
    """The location with the path of another branch."""
    here = loc.text == old or loc.text.startswith((f"{old}.", f"{old} "))
    text = new + loc.text.removeprefix(old) if here else loc.text
    return Loc(text, None if loc.parent is None else _moved(loc.parent, old, new))
