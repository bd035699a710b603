"""Modules compiled by the tvm backend; many ops in one graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tests.backends.needs_tvm  # noqa: F401  # skips
from tests.backends.graphs import CONFIG, agree, program_for
from tests.ir.op_samples import DIMS, B, P, S, Sample

from seqmix.backend import Executable
from seqmix_ir.builder import Builder
from seqmix_ir.defn import Array
from seqmix_ir.graph import Graph, Module, Value
from seqmix_ir.types import TensorType
from seqmix_tvm.backend import TvmBackend

__all__ = ["CONFIG", "agree", "batch_inputs", "batched", "compile_module"]


def compile_module(
    module: Module, weights: Mapping[str, Array] | None = None, **options: Any
) -> Executable:
    """Lower a module for the backend, with every pass verified, and compile it."""
    backend = TvmBackend(options)
    return backend.compile(program_for(backend, module, weights), "cpu", options)


def batched(samples: Sequence[Sample]) -> Module:
    """All samples in one graph: a library is linked once for them."""
    b = Builder()
    sizes = Value(TensorType("bool", (B, S, P)), "sizes")
    params: list[Value] = [sizes]
    results: list[Value] = []
    names: list[str] = []
    for n, sample in enumerate(samples):
        own = [None if t is None else Value(t, f"s{n}x{i}") for i, t in enumerate(sample.types)]
        params += [p for p in own if p is not None]
        made = b.emit(sample.defn, *own, body=sample.body)
        results += made
        names += [f"{sample.defn.name}{n}y{i}" for i in range(len(made))]
    graph = Graph("main", b.block(params, results), tuple(names), DIMS)
    return Module("batch", (graph,))


def batch_inputs(samples: Iterable[Sample], sizes: Mapping[str, int]) -> dict[str, Array]:
    """Arrays for the graph of :func:`batched`."""
    made: dict[str, Array] = {}
    for n, sample in enumerate(samples):
        for key, array in sample.inputs(sizes).items():
            made[key if key == "sizes" else f"s{n}{key}"] = array
    return made
