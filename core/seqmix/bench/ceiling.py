"""What the machine can do at most: multiply-adds of a large product, bytes read from memory.

The product is that of the fastest library at hand: torch's, or what one of the measured backends
makes of the same product. Bytes are read once, by the fastest of three ways that torch has.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from seqmix.bench.turns import in_turn

__all__ = ["BYTES", "FLOPS", "SIDE", "product_of", "products", "reads"]

SIDE = 1024
"""Rows, columns and terms of the product."""

FLOPS = 2 * SIDE**3
BYTES = 1 << 28
"""What is read: more than the caches of a processor hold."""

_TRIES = 3


def products(backends: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[str, Callable[[], Any]]:
    """Who multiplies fastest here, and its work of :data:`FLOPS` operations.

    ``backends`` are names with options; one that cannot multiply is left out, as its own row says.
    """
    x, weight = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    found: dict[str, Callable[[], Any]] = {"torch": lambda: functional.linear(x, weight)}
    for name, options in backends:
        try:
            work = product_of(name, options, x, weight)
            work()
        except Exception:  # Whatever it is, the contestant's own row says why.
            continue
        found.setdefault(name, work)
    return _fastest(found)


def reads() -> tuple[str, Callable[[], Any]]:
    """The fastest way to read :data:`BYTES` from memory, and its name."""
    matrix = torch.ones(BYTES // 4 // SIDE, SIDE)
    vector, flat = torch.ones(SIDE), matrix.view(-1)
    ways: dict[str, Callable[[], Any]] = {
        "sum": flat.sum,
        "dot": lambda: torch.dot(flat, flat),
        "matrix times vector": lambda: matrix @ vector,
    }
    return _fastest(ways)


def product_of(
    backend: str, options: Mapping[str, Any], x: Tensor, weight: Tensor
) -> Callable[[], Any]:
    """``x @ weight.T`` by a backend, for any number of rows."""
    from seqmix.backend import Program
    from seqmix.capture import capture_function
    from seqmix.compile import compile
    from seqmix.config import BlockConfig, Kind, ModelConfig
    from seqmix.weights import Weights

    captured = capture_function(
        _Product(weight).eval(), [x], input_names=["x"], output_names=["y"], dynamic=[("S", None)]
    )
    # A program needs the configuration of some model.
    step = Kind.model_validate({"kind": "mlp", "hidden": 8})
    config = ModelConfig(
        vocab_size=2, width=8, context_length=2, blocks=[BlockConfig(steps=[step])]
    )
    program = Program(captured.module, Weights.of_tensors(captured.weights), config)
    compiled = compile(program, backend, options=options, cache=False)
    graph = captured.module.graphs[0].name
    return lambda: compiled.run(graph, {"x": x})


def _fastest(ways: Mapping[str, Callable[[], Any]]) -> tuple[str, Callable[[], Any]]:
    medians = {n: statistics.median(t) for n, t in in_turn(ways, _TRIES).items()}
    name = min(medians, key=lambda n: medians[n])
    return name, ways[name]


class _Product(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)
