"""Graphs as functions of tensors: how a training step of ``seqmix.scan`` runs on a device.

The adjoint of a scan is two graphs (:mod:`seqmix_ir.adjoint`), in each of which one scan is the
sequential part. Here both run by generated kernels, the products around the loop by torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from seqmix.errors import BackendError
from seqmix_ir.binding import bind_dims
from seqmix_ir.graph import Graph, Module
from seqmix_triton.codegen.generated import Generated
from seqmix_triton.rules import all_rules
from seqmix_triton.run import Runner

__all__ = ["GraphFunction"]


class GraphFunction:
    """A graph without weights, run on the device of its arguments."""

    def __init__(self, graph: Graph) -> None:
        """Write the kernels of the graph."""
        self.generated = Generated(Module(graph.name, (graph,)))
        self._graph = self.generated.module.graphs[0]
        self._runners: dict[torch.device, Runner] = {}

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """The results for tensors in the order of the graph's inputs; no gradient is recorded."""
        shapes = {
            name: tuple(x.shape) for name, x in zip(self._graph.inputs, operands, strict=True)
        }
        run = self._runner(operands[0].device).start(bind_dims(self._graph, shapes))
        with torch.no_grad():
            return run.block(self._graph.block, operands)

    @cached_property
    def source(self) -> str:
        """The source of every kernel."""
        return "\n".join(kernel.source.text for _, kernel in self.generated.kernels())

    def _runner(self, device: torch.device) -> Runner:
        if device not in self._runners:
            rules: Mapping[str, Any] = {**all_rules(), **self.generated.rules}
            self._runners[device] = Runner(rules, _no_weight, device)
        return self._runners[device]


def _no_weight(name: str) -> Tensor:
    raise BackendError(f"the graph of a loop has no weights, found '{name}'")
