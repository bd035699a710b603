"""The names in a generated loop: its own, of its arguments, and of carries that take turns."""

from __future__ import annotations

import re
from collections.abc import Sequence

from seqmix_ir.graph import Op, Value
from seqmix_triton.codegen.lowering import identifier
from seqmix_triton.codegen.scan_plan import ScanPlan

__all__ = ["label_of", "moves", "pointers_of"]


def moves(after: Sequence[tuple[str, str]]) -> list[str]:
    """Assignments of the next carries, none of which may overwrite what another reads."""
    names = [name for name, _ in after]
    reads = [set(re.findall(r"\w+", text)) - {name} for name, text in after]
    if not any(read.intersection(names) for read in reads):
        return [f"{name} = {text}" for name, text in after if name != text]
    lines = [f"next_{name} = {text}" for name, text in after]
    return [*lines, *(f"{name} = next_{name}" for name in names)]


def label_of(ops: Sequence[Op]) -> str:
    """A name made of the ops that say most."""
    quiet = {"cast", "reshape", "squeeze", "unsqueeze", "transpose", "slice", "constant", "expand"}
    names = list(dict.fromkeys(op.name for op in ops if op.name not in quiet)) or ["copy"]
    return "_".join(names[:6]) + ("_etc" if len(names) > 6 else "")


def pointers_of(params: Sequence[Value], plan: ScanPlan) -> dict[Value, str]:
    """The names of the arguments that are memory."""
    names = {}
    last = plan.carries + plan.sequences
    for i, param in enumerate(params):
        kind = "carry" if i < plan.carries else "sequence" if i < last else "constant"
        names[param] = f"{identifier(param.hint)}_{i}_ptr" if param.hint else f"{kind}_{i}_ptr"
    return names
