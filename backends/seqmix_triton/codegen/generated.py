"""All kernels that are generated for a module: written once each, launched by two rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from seqmix.whole_file import write_whole
from seqmix_ir.graph import Block, Graph, Module, Op, Value
from seqmix_ir.passes.group import Grouping, group
from seqmix_ir.passes.group_pull import is_layout
from seqmix_ir.text import show
from seqmix_triton.codegen.expressions import missing
from seqmix_triton.codegen.group_kernel import GroupKernel
from seqmix_triton.codegen.group_source import write_group
from seqmix_triton.codegen.scan_kernel import ScanKernel
from seqmix_triton.codegen.scan_reads import NotALoopError
from seqmix_triton.codegen.scan_source import write_scan
from seqmix_triton.rules.mixers import scan_steps
from seqmix_triton.run import GraphRun, Rule

__all__ = ["Generated", "grouped"]


def grouped(module: Module) -> tuple[Module, Grouping]:
    """The module with the groups that kernels can be generated for."""
    results = {value for graph in module.graphs for value in graph.block.results}

    def refuse(op: Op) -> str | None:
        if not is_layout(op):
            return missing(op)
        return "it is a result of the graph" if op.results[0] in results else None

    return group(module, refuse)


class Generated:
    """The kernels of a module by their text, and the rules that run them."""

    def __init__(self, module: Module) -> None:
        """Write the source of every group and loop."""
        self.module, self.grouping = grouped(module)
        self.refused: dict[str, str] = {}
        self._kernels: dict[str, GroupKernel | ScanKernel] = {}
        self._of: dict[Op, GroupKernel | ScanKernel] = {}
        for op in (op for graph in self.module.graphs for op in graph.block.ops):
            if op.name in ("fused", "scan"):
                self._add(op)

    @property
    def rules(self) -> Mapping[str, Rule]:
        """What ``fused`` ops run as, and scans that are kernels."""
        return {"fused": self._run_group, "scan": self._run_scan}

    def kernels(self) -> Iterable[tuple[str, GroupKernel | ScanKernel]]:
        """Every kernel once, under a name of its own."""
        names: dict[str, int] = {}
        for kernel in self._kernels.values():
            name = kernel.source.name
            names[name] = number = names.get(name, 0) + 1
            yield (name if number == 1 else f"{name}_{number}"), kernel

    @property
    def uses(self) -> dict[str, int]:
        """How often a run launches each kernel."""
        counts = Counter(id(kernel) for kernel in self._of.values())
        return {name: counts[id(kernel)] for name, kernel in self.kernels()}

    def save(self, folder: Path) -> None:
        """Write every kernel to a file of its name."""
        for name, kernel in self.kernels():
            write_whole(folder / f"{name}.py", kernel.source.text)

    def notes(self) -> list[str]:
        """What was fused and what was not, for people."""
        return [*_fused_notes(self.grouping), *self._scan_notes()]

    def _scan_notes(self) -> Iterable[str]:
        for name, kernel in self.kernels():
            if isinstance(kernel, ScanKernel):
                held = (
                    "reads its constants again in every step"
                    if kernel.source.streamed
                    else (f"holds {kernel.source.held} bytes of constants in registers")
                )
                yield f"{name}: one kernel with the loop inside; it {held}"
        for loc, reason in self.refused.items():
            yield f"scan at {loc} runs step by step: {reason}"

    def _add(self, op: Op) -> None:
        key = _canonical(op)
        if key not in self._kernels:
            try:
                self._kernels[key] = (
                    GroupKernel(write_group(op))
                    if op.name == "fused"
                    else ScanKernel(write_scan(op))
                )
            except NotALoopError as error:
                self.refused[str(op.loc)] = str(error)
                return
        self._of[op] = self._kernels[key]

    def _run_group(self, run: GraphRun, op: Op, *operands: Tensor) -> Any:
        kernel, body = self._of[op], op.body
        if body is None or not isinstance(kernel, GroupKernel):
            raise RuntimeError(f"{op.loc}: '{op.name}' is no group")
        if not kernel.fits(run.size):
            return run.block(body, operands)
        return kernel(run.device, run.size, *operands)

    def _run_scan(self, run: GraphRun, op: Op, *operands: Tensor) -> Any:
        kernel = self._of.get(op)
        return (
            scan_steps(run, op, *operands)
            if kernel is None
            else kernel(run.device, run.size, *operands)
        )


def _kernel(op: Op) -> GroupKernel | ScanKernel:
    """The kernel of a group or a loop; NotALoopError with the reason where there is none."""
    return GroupKernel(write_group(op)) if op.name == "fused" else ScanKernel(write_scan(op))


def _fused_notes(grouping: Grouping) -> Iterable[str]:
    counts: dict[tuple[str, str], int] = {}
    for made in grouping.fused:
        again = f"; computed more than once: {', '.join(made.repeated)}" if made.repeated else ""
        key = (made.label, ", ".join(made.ops) + again)
        counts[key] = counts.get(key, 0) + 1
    for (label, ops), count in counts.items():
        yield f"fused {label} ({count}x): {ops}"
    for reason, count in grouping.left.most_common():
        yield f"not fused, {reason} ({count}x)"


def _canonical(op: Op) -> str:
    """The text of an op and its body, without locations."""
    params = tuple(Value(v.type) for v in op.operands if v is not None)
    results = tuple(Value(r.type) for r in op.results)
    body = None if op.body is None else _unnamed(op.body)
    alone = Op(op.defn, params, results, body, op.loc)
    outputs = tuple(f"out_{i}" for i in range(len(results)))
    return show(Module("kernel", (Graph("kernel", Block(params, (alone,), results), outputs),)))


def _unnamed(body: Block) -> Block:
    """The same ops on values without names."""
    env = {v: Value(v.type) for v in body.params}
    made = []
    for op in body.ops:
        operands = tuple(None if v is None else env[v] for v in op.operands)
        results = tuple(Value(r.type) for r in op.results)
        env.update(zip(op.results, results, strict=True))
        made.append(Op(op.defn, operands, results, op.body, op.loc))
    return Block(
        tuple(env[p] for p in body.params), tuple(made), tuple(env[r] for r in body.results)
    )
