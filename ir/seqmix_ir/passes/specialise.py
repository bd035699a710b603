"""Specialisation: a graph for fixed sizes; a ``step`` graph is ``forward`` at S = 1."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from seqmix_ir.binding import check_dims
from seqmix_ir.dims import Size, substitute_size
from seqmix_ir.errors import IRError, did_you_mean
from seqmix_ir.graph import Graph, Module
from seqmix_ir.passes.canonicalize import canonicalize
from seqmix_ir.passes.resize import resize_block
from seqmix_ir.passes.trivial import TRIVIAL_RULES

__all__ = ["specialise"]


def specialise(graph: Graph, name: str, sizes: Mapping[str, int]) -> Graph:
    """The graph called ``name`` that does what ``graph`` does where the given sizes are fixed.

    The names vanish from every type, attribute, body and from the header; what becomes trivial is
    simplified: a scan of one step is its body, a concat, slice or reduction of one element is that
    element. Input and output names stay. IRError for a name that the header lacks, for a size that
    breaks its bounds, and, with the location, for an op that refuses the sizes.
    """
    _check_sizes(graph, sizes)

    def fixed(size: Size) -> Size:
        return substitute_size(size, sizes)

    dims = tuple(info for info in graph.dims if info.name not in sizes)
    block = resize_block(graph.block, fixed)
    small = dataclasses.replace(graph, name=name, block=block, dims=dims)
    (result,) = canonicalize(Module(name, (small,)), TRIVIAL_RULES).graphs
    return result


def _check_sizes(graph: Graph, sizes: Mapping[str, int]) -> None:
    known = [info.name for info in graph.dims]
    for name, size in sizes.items():
        if name not in known:
            raise IRError(
                f"@{graph.name} has no size '{name}'{did_you_mean(name, known)}; "
                f"its header names {', '.join(known) or 'none'}"
            )
        if isinstance(size, bool) or not isinstance(size, int):
            raise IRError(f"@{graph.name}: size {name} is {size!r}, expected a whole number")
    check_dims(graph, sizes)
