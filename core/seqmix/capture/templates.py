"""Copies of a branch's ops on other inputs and weights, at another path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
    for op in template.ops:
        operands = tuple(None if v is None else env.get(v, v) for v in op.operands)
        results = tuple(Value(v.type, v.hint) for v in op.results)
        body = None if op.body is None else _moved_body(op.body, template.path, path)
        b.append(Op(op.defn, operands, results, body, _moved(op.loc, template.path, path)))
        env.update(zip(op.results, results, strict=True))
    return tuple(env.get(v, v) for v in template.outputs)


def _moved_body(body: Block, old: str, new: str) -> Block:
    """A body that says it is of another branch; its values are its own and may be shared."""
    if old == new:
        return body
    ops = tuple(
        replace(
            op,
            loc=_moved(op.loc, old, new),
            body=None if op.body is None else _moved_body(op.body, old, new),
        )
        for op in body.ops
    )
    return Block(body.params, ops, body.results)


def _moved(loc: Loc, old: str, new: str) -> Loc:
    """The location with the path of another branch."""
    here = loc.text == old or loc.text.startswith((f"{old}.", f"{old} "))
    text = new + loc.text.removeprefix(old) if here else loc.text
    return Loc(text, None if loc.parent is None else _moved(loc.parent, old, new))
