"""Compiling a program into a folder: libraries, weights as they lie in memory, a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seqmix.backend import Program, Report
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.folder import describe, write_stored
from seqmix_tvm.lower import lower_graph

__all__ = ["build_folder"]


def build_folder(
    folder: Path, program: Program, mcpu: str | None, report: Report
) -> dict[str, Any]:
    """Compile every graph of a program; the manifest of what lies in the folder then."""
    chosen = mcpu or tvm.host_cpu()
    graphs, arrays = {}, {}
    for graph in program.module.graphs:
        lowered = lower_graph(graph)
        library = f"{graph.name}.so"
        tvm.build(lowered.module, chosen, folder / library)
        graphs[graph.name] = (graph, library, [s.name for s in lowered.stored])
        arrays.update(lowered.arrays(program.weights))
        report.kernels.update(lowered.kernels)
    write_stored(folder, arrays)
    report.bytes = {p.name: p.stat().st_size for p in sorted(folder.iterdir())}
    return describe(folder, graphs, {"kind": "llvm", "mcpu": chosen})
