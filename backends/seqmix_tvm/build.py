"""Compiling a program into a folder: libraries, weights as they lie in memory, a manifest."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from seqmix.backend import Program, Report
from seqmix.progress import counted
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.compiled_model import CPU_FEATURES, RUNTIME, WEIGHTS
from seqmix_tvm.cuda.compiler import architecture_of
from seqmix_tvm.cuda.folder import build_device
from seqmix_tvm.folder import describe, seal, write_stored
from seqmix_tvm.lower import lower_graph
from seqmix_tvm.quantise import quantise_program, rounding_errors

__all__ = ["build_folder"]


def build_folder(
    folder: Path, program: Program, options: Mapping[str, Any], report: Report
) -> dict[str, Any]:
    """Compile every graph of a program; the manifest of what lies in the folder then.

    ``options`` are those of the backend; the target is that of the report.
    """
    arch = None if report.target == "cpu" else architecture_of(report.target)
    mcpu, kind = options.get("mcpu") or _processor(arch), options.get("weights", "model")
    stored: dict[str, Any] = {"kind": kind}
    if kind != "model":
        program, stored = _with_smaller_weights(program, kind, report)
    graphs, arrays, files = {}, {}, [WEIGHTS]
    for graph in program.module.graphs:
        lowered = lower_graph(graph, "llvm" if arch is None else "cuda")
        library = f"{graph.name}.so"
        if arch is None:
            tvm.build(lowered.module, mcpu, folder / library, partial(counted, "kernels built"))
        else:
            files += build_device(folder, graph.name, lowered, arch, mcpu, report)
        graphs[graph.name] = (graph, library, [s.name for s in lowered.stored])
        arrays.update(lowered.arrays(program.weights))
        report.kernels.update(lowered.kernels)
        files.append(library)
    write_stored(folder, arrays)
    if options.get("runtime"):
        shutil.copy2(tvm.runtime_library(), folder / RUNTIME)
        files.append(RUNTIME)
    report.bytes = {name: (folder / name).stat().st_size for name in files}
    target = _target(mcpu) if arch is None else {**_target(mcpu), "kind": "cuda", "arch": arch}
    return seal(folder, {**describe(program, graphs, target), "weights": stored}, files)


def _processor(arch: str | None) -> str:
    """LLVM's name of this processor; beside a GPU, where it does little, of any of its kind."""
    if arch is None:
        return tvm.host_cpu()
    return "x86-64" if platform.machine() == "x86_64" else "generic"


def _target(mcpu: str) -> dict[str, Any]:
    """What the library needs of a machine."""
    features = sorted(tvm.cpu_features(mcpu) & set(CPU_FEATURES))
    system, machine = platform.system(), platform.machine()
    return {
        "kind": "llvm", "mcpu": mcpu, "system": system, "machine": machine, "features": features
    }  # fmt: skip


def _with_smaller_weights(
    program: Program, kind: str, report: Report
) -> tuple[Program, dict[str, Any]]:
    """The program with weights of a smaller type, and what that costs, which the report says."""
    total = len(program.module.weights())
    smaller, names = quantise_program(program, kind)
    errors = rounding_errors(program.weights, names, kind)
    report.notes.append(f"weights in {kind}: {len(names)} of {total}")
    if errors:
        worst = max(errors, key=lambda name: errors[name]["largest"])
        mean = sum(e["mean"] for e in errors.values()) / len(errors)
        report.notes.append(
            f"relative error of an output channel's weights in {kind}: mean {mean:.2e}, largest "
            f"{errors[worst]['largest']:.2e} in '{worst}'"
        )
    return smaller, {"kind": kind, "errors": errors}
