"""Runs a legalized graph on torch tensors: each op by its rule, each value as long as it is read.

What does not change from run to run (the order of the ops, who reads a value last) is found once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from seqmix.dtypes import torch_dtype
from seqmix_ir.dims import Size, evaluate_size
from seqmix_ir.graph import Block, Op, Value

__all__ = ["GraphRun", "Rule", "Runner"]

Rule: TypeAlias = "Callable[..., Any]"
"""``rule(run, op, *operands)``: one tensor, or a tuple of one per result. A result in another
dtype than the declared one is rounded to it; it may be a view of an operand."""


@dataclass(frozen=True, slots=True)
class _Step:
    op: Op
    rule: Rule
    dtypes: tuple[torch.dtype, ...]
    dead: tuple[Value, ...]


class Runner:
    """What all runs of a module share: weights on the device, constants, and the steps."""

    def __init__(
        self, rules: Mapping[str, Rule], weight: Callable[[str], Tensor], device: torch.device
    ) -> None:
        """``weight`` gives a weight by name, on any device."""
        self.device = device
        self._rules = rules
        self._overrides: Mapping[Op, Rule] = {}
        self._lookup = weight
        self._weights: dict[str, Tensor] = {}
        self._constants: dict[Op, Tensor] = {}
        self._steps: dict[Block, tuple[_Step, ...]] = {}

    def with_rules(self, overrides: Mapping[Op, Rule]) -> Runner:
        """Another one with rules of their own for some ops; weights and constants are shared."""
        other = copy.copy(self)
        other._overrides = overrides
        other._steps = {}
        return other

    def start(self, sizes: Mapping[str, int]) -> GraphRun:
        """One run with these sizes."""
        return GraphRun(self, sizes)

    def weight(self, name: str) -> Tensor:
        """The weight called ``name``, moved to the device once."""
        if (known := self._weights.get(name)) is None:
            known = self._weights.setdefault(name, self._lookup(name).to(self.device))
        return known

    def held(self) -> Iterator[Tensor]:
        """Tensors that stay from run to run."""
        # Copies: another thread's run may add to them meanwhile.
        yield from list(self._weights.values())
        yield from list(self._constants.values())

    def once(self, op: Op, make: Callable[[], Tensor]) -> Tensor:
        """What ``make`` gave for the op in the first run; later ones copy nothing to a device."""
        if (known := self._constants.get(op)) is None:
            known = self._constants.setdefault(op, make())
        return known

    def steps(self, block: Block) -> tuple[_Step, ...]:
        """The ops of a block with their rules, and the values that nothing needs after each."""
        if (known := self._steps.get(block)) is None:
            known = self._steps[block] = tuple(self._planned(block))
        return known

    def _planned(self, block: Block) -> list[_Step]:
        kept = set(block.results)
        steps = []
        for op in reversed(block.ops):
            dead = {v for v in (*op.operands, *op.results) if v is not None and v not in kept}
            kept |= dead
            dtypes = tuple(torch_dtype(value.type.dtype) for value in op.results)
            rule = self._overrides.get(op) or self._rules[op.name]
            steps.append(_Step(op, rule, dtypes, tuple(dead)))
        return steps[::-1]


class GraphRun:
    """One run: the sizes that its inputs bind, and what the rules ask for."""

    def __init__(self, runner: Runner, sizes: Mapping[str, int]) -> None:
        """``sizes`` by the names of the graph's dimensions."""
        self._runner = runner
        self._sizes = sizes
        self.device = runner.device
        self.weight = runner.weight
        self.once = runner.once

    def size(self, size: Size) -> int:
        """The number that a symbolic size is in this run."""
        return size if isinstance(size, int) else evaluate_size(size, self._sizes)

    def shape(self, sizes: tuple[Size, ...]) -> tuple[int, ...]:
        """:meth:`size` of every axis."""
        return tuple(map(self.size, sizes))

    def block(self, block: Block, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The results of a block on its parameters."""
        values: dict[Value | None, Tensor | None] = dict(zip(block.params, inputs, strict=True))
        values[None] = None
        for step in self._runner.steps(block):
            results = step.rule(self, step.op, *(values[v] for v in step.op.operands))
            if isinstance(results, Tensor):
                results = (results,)
            for value, tensor, dtype in zip(step.op.results, results, step.dtypes, strict=True):
                values[value] = tensor if tensor.dtype == dtype else tensor.to(dtype)
            for value in step.dead:
                values.pop(value, None)
        return tuple(_present(values[value]) for value in block.results)


def _present(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise RuntimeError("a block returns a value that no op has computed")
    return tensor
