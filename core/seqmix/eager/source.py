"""Write a graph of the IR as one Python function of torch calls; loops become loops.

One line per op, and nothing else per step: that is what an eager loop over small tensors costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from seqmix.dtypes import torch_dtype
from seqmix.eager.calls import CALLS, SAME_WITH_NUMBERS
from seqmix.eager.fuse import Plan, plan_calls
from seqmix.eager.library import NAMES
from seqmix.errors import BackendError
from seqmix_ir.dims import Dim, Size, show_size, symbols_of
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, Graph, Op, Value
from seqmix_ir.ops import Constant, Scan
from seqmix_ir.ops.rules import normal_axis

__all__ = ["Function", "write_function"]


class Function:
    """A graph as a function of tensors; ``source`` is what it was compiled from."""

    def __init__(self, source: str, names: dict[str, Any]) -> None:
        """``names`` are the globals of the source, which defines ``run``."""
        self.source = source
        scope = dict(names)
        exec(compile(source, "<seqmix.eager>", "exec"), scope)
        self._run: Callable[..., tuple[Tensor, ...]] = scope["run"]

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """The results of the graph, some of which may be views of operands."""
        return self._run(*operands)


def write_function(graph: Graph) -> Function:
    """Compile ``graph`` for tensors of the CPU; sizes are bound from the operands' shapes.

    BackendError names an op that has no call of torch here.
    """
    return _Writer(graph).function()


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._lines: list[str] = []
        self._names: dict[Value, str] = {}
        self._globals: dict[str, Any] = dict(NAMES)
        self._numbers: dict[Value, str] = {}
        self._count = 0

    def function(self) -> Function:
        """Everything written."""
        block = self._graph.block
        params = [self._name(p) for p in block.params]
        self._lines.append(f"def run({', '.join(params)}):")
        self._bind_sizes(block.params)
        self._block(block, "    ", set(block.results))
        results = "".join(f"{self._names[r]}, " for r in block.results)
        self._lines.append(f"    return ({results})")
        return Function("\n".join(self._lines) + "\n", self._globals)

    def size(self, size: Size) -> str:
        """Source of a size."""
        return show_size(size)

    def dtype(self, name: str) -> str:
        """Source of a dtype."""
        dtype = torch_dtype(name)
        self._globals[str(name)] = dtype
        return str(name)

    def constant(self, op: Op) -> str:
        """The name of a tensor that is made once."""
        name = f"k{len(self._globals)}"
        defn: Any = op.defn
        self._globals[name] = torch.tensor(defn.value, dtype=torch_dtype(defn.dtype))
        return name

    def _name(self, value: Value) -> str:
        self._names[value] = name = f"v{self._count}"
        self._count += 1
        return name

    def _bind_sizes(self, params: Sequence[Value]) -> None:
        bound: set[str] = set()
        wanted = {n for p in params for s in p.type.shape for n in symbols_of(s)}
        for p in params:
            for axis, size in enumerate(p.type.shape):
                name = show_size(size)
                if isinstance(size, Dim) and name in wanted - bound:
                    bound.add(name)
                    self._lines.append(f"    {name} = {self._names[p]}.shape[{axis}]")
        if missing := wanted - bound:
            raise BackendError(
                f"eager: no operand has an axis of size {', '.join(sorted(missing))}"
            )

    def _block(self, block: Block, indent: str, kept: set[Value]) -> None:
        """A line per op; a name is forgotten behind the last line that reads it."""
        plan = plan_calls(block)
        dead = _last_uses(block, plan, kept) if indent == "    " else {}
        for op in block.ops:
            if op in plan.skipped:
                continue
            if isinstance(op.defn, Scan):
                self._loop(op, op.defn, indent)
            elif not self._as_number(op):
                source = self._call(op, plan)
                names = ", ".join(self._name(r) for r in plan.makes(op))
                self._lines.append(f"{indent}{names} = {source}")
            gone = [self._names[v] for v in dead.get(op, ()) if v in self._names]
            gone = [name for name in gone if name not in self._globals]
            if gone:
                self._lines.append(f"{indent}del {', '.join(gone)}")

    def _as_number(self, op: Op) -> bool:
        """Scalars are numbers where a call takes one, and tensors elsewhere."""
        if not isinstance(op.defn, Constant) or op.results[0].type.rank:
            return False
        value: Any = op.defn.value
        self._names[op.results[0]] = self.constant(op)
        if not isinstance(value, float) or math.isfinite(value):
            self._numbers[op.results[0]] = repr(value)
        return True

    def _call(self, op: Op, plan: Plan) -> str:
        if (fused := plan.calls.get(op)) is not None:
            operands = ", ".join(self._names[v] for v in fused.operands)
            return f"{fused.name}({operands}{fused.more})"
        if op in plan.pieces:
            axis = normal_axis(op.defn.attributes()["axis"], op.values[0].type.rank)
            return f"{self._names[op.values[0]]}.chunk({len(plan.pieces[op])}, {axis})"
        if op.name not in CALLS:
            raise BackendError(f"{op.loc}: eager: '{op.name}' is not written as calls of torch")
        tensors = [v for v in op.operands if v is not None and v not in self._numbers]
        numbers = self._numbers if op.name in SAME_WITH_NUMBERS and tensors else {}
        names = ["None" if v is None else numbers.get(v, self._names[v]) for v in op.operands]
        return CALLS[op.name](self, op, *names)

    def _loop(self, op: Op, scan: Scan, indent: str) -> None:
        body = op.body
        if body is None:
            raise IRError(f"{op.loc}: this scan has no body")
        first, second = scan.carries, scan.carries + scan.sequences
        given = [self._names[v] for v in op.values]
        carries = [self._name(p) for p in body.params[:first]]
        slices = [self._name(p) for p in body.params[first:second]]
        for p, name in zip(body.params[second:], given[second:], strict=True):
            self._names[p] = name
        lists = [self._name(r) for r in op.results[first:]]
        starts = (*given[:first], *["[]"] * len(lists))
        for name, start in zip((*carries, *lists), starts, strict=True):
            self._lines.append(f"{indent}{name} = {start}")
        steps = [self._steps(given[first + i], scan) for i in range(scan.sequences)]
        target = ", ".join(slices)
        source = steps[0] if len(steps) == 1 else f"zip({', '.join(steps)})"
        self._lines.append(f"{indent}for {target} in {source}:")
        self._block(body, indent + "    ", set())
        self._turn(body, carries, lists, indent + "    ")
        for value, name in zip(op.results, (*carries, *lists), strict=True):
            self._names[value] = name
        for name in lists:
            back = f"{name}[::-1]" if scan.reverse else name
            self._lines.append(f"{indent}{name} = stack({back}, {scan.axis})")

    def _steps(self, name: str, scan: Scan) -> str:
        slices = f"{name}.unbind({scan.axis})"
        return f"reversed({slices})" if scan.reverse else slices

    def _turn(self, body: Block, carries: Sequence[str], lists: Sequence[str], indent: str) -> None:
        """The end of a step: what is stacked, and the new carries."""
        count = len(carries)
        for name, r in zip(lists, body.results[count:], strict=True):
            self._lines.append(f"{indent}{name}.append({self._names[r]})")
        news = [self._names[r] for r in body.results[:count]]
        if count:
            self._lines.append(f"{indent}{', '.join(carries)} = {', '.join(news)}")


def _last_uses(block: Block, plan: Plan, kept: Iterable[Value]) -> dict[Op, list[Value]]:
    """Op -> the values that nothing behind it reads."""
    seen = set(kept)
    dead: dict[Op, list[Value]] = {}
    for op in reversed(block.ops):
        if op in plan.skipped:
            continue
        values = dict.fromkeys(v for v in (*plan.reads(op), *plan.makes(op)) if v is not None)
        dead[op] = [v for v in values if v not in seen]
        seen.update(values)
    return dead
