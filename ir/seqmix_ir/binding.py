"""Named sizes of a graph from the shapes of actual inputs, with every mismatch explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from seqmix_ir.dims import Dim, Size, evaluate_size, substitute_size, symbols_of
from seqmix_ir.errors import IRError
from seqmix_ir.graph import DimInfo, Graph
from seqmix_ir.types import TensorType

__all__ = ["bind_dims", "check_dims"]


def bind_dims(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Name -> size of every dimension that the inputs of ``graph`` fix.

    Axes that are a plain name bind it, then axes such as ``P + S`` with one name left. IRError
    names the input and the axis that disagrees, or the bound of the graph that is broken.
    """
    axes = list(_axes(graph, shapes))
    solver = _Solver()
    for axis in axes:
        if isinstance(axis.size, Dim) and _plain_name(axis.size):
            solver.bind(axis)
    while any([solver.bind(axis) for axis in axes]):
        pass
    for axis in axes:
        solver.check(axis)
    check_dims(graph, solver.sizes, solver.origin)
    return solver.sizes


def check_dims(
    graph: Graph, sizes: Mapping[str, int], origin: Mapping[str, str] | None = None
) -> None:
    """IRError when a size breaks the bounds of the graph's header, or is negative."""
    known = {info.name: info for info in graph.dims}
    for name, size in sizes.items():
        if problem := _broken(known.get(name, DimInfo(name, min=0)), size):
            where = f" ({origin[name]})" if origin and name in origin else ""
            raise IRError(f"@{graph.name}: size {name} is {size}{where}, expected {problem}")


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis of one input: what its type says, and what came."""

    name: str
    index: int
    type: TensorType
    found: int

    @property
    def size(self) -> Size:
        return self.type.shape[self.index]

    @property
    def where(self) -> str:
        return f"axis {self.index} of %{self.name}"


@dataclass
class _Solver:
    sizes: dict[str, int] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)

    def bind(self, axis: _Axis) -> bool:
        """Bind the only unknown name of the axis, if it has one and is linear in it."""
        rest = substitute_size(axis.size, self.sizes)
        unknown = symbols_of(rest)
        if len(unknown) != 1 or not isinstance(rest, Dim):
            return False
        (name,) = unknown
        factor, offset = _linear(rest, name)
        if factor == 0 or (axis.found - offset) % factor:
            return False
        self.sizes[name] = (axis.found - offset) // factor
        self.origin[name] = axis.where
        return True

    def check(self, axis: _Axis) -> None:
        if isinstance(axis.size, Dim) and not symbols_of(axis.size) <= set(self.sizes):
            missing = ", ".join(sorted(symbols_of(axis.size) - set(self.sizes)))
            raise IRError(
                f"%{axis.name}: axis {axis.index} of {axis.type} is {axis.found}, which does not "
                f"determine {missing}; no other input does"
            )
        expected = evaluate_size(axis.size, self.sizes)
        if expected != axis.found:
            symbol = f"{axis.size} = " if isinstance(axis.size, Dim) else ""
            raise IRError(
                f"%{axis.name}: axis {axis.index} of {axis.type} is {axis.found}, expected "
                f"{symbol}{expected}{self._sources(axis.size)}"
            )

    def _sources(self, size: Size) -> str:
        """`` (S = 5 from axis 1 of %q)``, so that one sees which inputs disagree."""
        names = sorted(symbols_of(size))
        known = [f"{n} = {self.sizes[n]} from {self.origin[n]}" for n in names]
        return f" ({', '.join(known)})" if known else ""


def _axes(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[_Axis]:
    for name, value in graph.inputs.items():
        shape = shapes[name]
        if len(shape) != value.type.rank:
            raise IRError(
                f"%{name}: expected {value.type} of rank {value.type.rank}, "
                f"got shape {tuple(shape)} of rank {len(shape)}"
            )
        for index, found in enumerate(shape):
            yield _Axis(name, index, value.type, found)


def _plain_name(size: Dim) -> bool:
    return len(size.terms) == 1 and size.terms[0][1] == 1 and len(size.terms[0][0]) == 1


def _linear(size: Dim, name: str) -> tuple[int, int]:
    """``(factor, offset)`` of ``factor * name + offset``; factor 0 when it is not of that form."""
    terms = dict(size.terms)
    factor, offset = terms.pop((name,), 0), terms.pop((), 0)
    return (0, 0) if terms else (factor, offset)


def _broken(info: DimInfo, size: int) -> str:
    """What the bounds of ``info`` ask for, if ``size`` breaks them."""
    if size < info.min:
        return f"{info.min} or more"
    if info.max is not None and size > info.max:
        return f"{info.max} or less"
    return f"a multiple of {info.multiple_of}" if size % info.multiple_of else ""
