"""Where an element of a tensor is: indices, and memory that tensors lie in row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TypeAlias, cast

from seqmix.errors import BackendError, IRError
from seqmix_ir.dims import Opaque, Size, evaluate_size, symbols_of
from seqmix_ir.graph import Value
from seqmix_ir.types import DType
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.functions import addressed, named

__all__ = ["COMPUTED", "Index", "Place", "Sizes", "groups_of_axes", "known", "present", "reshaped"]

Axes: TypeAlias = "tuple[tvm.Expr, ...]"

COMPUTED: dict[DType, str] = {**tvm.NAMES, "f16": "float32", "bf16": "float32"}
"""The type in which a kernel computes with elements of each type."""


def known(size: Size) -> int:
    """A size that is a number; BackendError for one that is known at run time only."""
    if isinstance(size, int):
        return size
    raise BackendError(f"a kernel needs a size that is known when it is compiled, found {size}")


def present(value: Value | None) -> Value:
    """An operand that an op cannot do without."""
    if value is None:
        raise BackendError("an operand that a kernel reads is absent")
    return value


class Sizes:
    """Symbolic sizes as expressions of a kernel."""

    def __init__(self, names: dict[str, tvm.Var], least: Mapping[str, int] | None = None) -> None:
        """``names`` are the kernel's variables for the named sizes, ``least`` their bounds."""
        self.names = names
        self._least = dict(least or {})
        self._known: dict[Size, tvm.Expr] = {}
        self._held: dict[Opaque, tvm.Expr] = {}

    def __call__(self, size: Size) -> tvm.Expr:
        """The size as an expression of int64."""
        if size not in self._known:
            self._known[size] = self._made(size)
        return self._known[size]

    def hold(self, shapes: Iterable[Sequence[Size]], name: Callable[[tvm.Expr], tvm.Expr]) -> None:
        """Let ``name`` compute the quotients, roots and extrema in some shapes, once for all."""
        for size in (size for shape in shapes for size in shape):
            for atom in _opaques(size):
                if atom not in self._held:
                    self._known.clear()
                    self._held[atom] = name(self._opaque(atom))
        self._known.clear()

    def at_least(self, size: Size) -> int:
        """A product of sizes where every name is as small as it can be; 0 where that is no size."""
        smallest = {name: self._least.get(name, 0) for name in symbols_of(size)}
        try:
            return evaluate_size(size, smallest)
        except IRError:
            # A root of a number below 0, or a quotient by 0: no sizes of a run are like that.
            return 0

    def product(self, shape: Sequence[Size]) -> tvm.Expr:
        """The number of elements of a shape."""
        total: Size = 1
        for size in shape:
            total = total * size
        return self(total)

    def _made(self, size: Size) -> tvm.Expr:
        if isinstance(size, int):
            return tvm.integer(size)
        total = None
        for monomial, coefficient in size.terms:
            term = None if coefficient == 1 and monomial else tvm.integer(coefficient)
            for atom in monomial:
                factor = self._named(atom) if isinstance(atom, str) else self._opaque(atom)
                term = factor if term is None else term * factor
            total = term if total is None else total + term
        return total

    def _named(self, name: str) -> tvm.Var:
        if name not in self.names:
            raise BackendError(
                f"backend 'tvm': no input of the graph has an axis of size {name} alone; a size "
                "that only sums or products show is not known when a kernel runs"
            )
        return self.names[name]

    def _opaque(self, atom: Opaque) -> tvm.Expr:
        if atom in self._held:
            return self._held[atom]
        first, *rest = (self(arg) for arg in atom.args)
        if atom.kind in ("min", "max"):
            pick = tvm.minimum if atom.kind == "min" else tvm.maximum
            for other in rest:
                first = pick(first, other)
            return first
        if atom.kind == "isqrt":
            # Exact below 2**52; the cast rounds down.
            return tvm.cast("int64", tvm.call("sqrt", tvm.cast("float64", first)))
        (by,) = rest
        # Sizes are 0 or more, but their differences need not be.
        return tvm.call("floordiv", first + (by - 1) if atom.kind == "ceildiv" else first, by)


def _opaques(size: Size) -> Iterator[Opaque]:
    """What is no polynomial in a size, what is inside of others before these."""
    if isinstance(size, int):
        return
    for monomial, _ in size.terms:
        for atom in monomial:
            if isinstance(atom, Opaque):
                for arg in atom.args:
                    yield from _opaques(arg)
                yield atom


class Index:
    """A place in a tensor of a shape; given by axis or as one number, the other is derived."""

    def __init__(
        self,
        sizes: Sizes,
        shape: tuple[Size, ...],
        axes: Axes | Callable[[], Axes] | None = None,
        flat: tvm.Expr | Callable[[], tvm.Expr] | None = None,
    ) -> None:
        """At least one of ``axes`` and ``flat``; a function is called when its result is needed."""
        self.sizes = sizes
        self.shape = shape
        self._axes = axes
        self._flat = flat

    @property
    def axes(self) -> Axes:
        """The index along each axis."""
        if self._axes is None:
            self._axes = unravel(self.sizes, self.flat, self.shape)
        elif isinstance(self._axes, FunctionType):
            self._axes = self._axes()
        return cast("Axes", self._axes)

    @property
    def flat(self) -> tvm.Expr:
        """The place in row-major order."""
        if self._flat is None:
            self._flat = ravel(self.sizes, self.axes, self.shape)
        elif isinstance(self._flat, FunctionType):
            self._flat = self._flat()
        return self._flat


@dataclass(frozen=True)
class Place:
    """The memory of a tensor: a buffer of one dimension, and where in it an element lies."""

    buffer: tvm.Buffer
    dtype: DType
    where: Callable[[Index], tvm.Expr] = lambda index: index.flat

    def load(self, index: Index) -> tvm.Expr:
        """An element, in the type that kernels compute in."""
        return self.read(self.where(index))

    def read(self, spot: tvm.Expr) -> tvm.Expr:
        """What lies at a place in memory, in the type that kernels compute in."""
        found = self.buffer[spot]
        if self.dtype == "bf16":
            return tvm.reinterpret(
                "float32", tvm.cast("uint32", found) << tvm.integer(16, "uint32")
            )
        return tvm.cast(COMPUTED[self.dtype], found)

    def stored(self, value: tvm.Expr) -> tvm.Expr:
        """A computed value in the form in which it lies in memory."""
        return stored(value, self.dtype)


def stored(value: tvm.Expr, dtype: DType) -> tvm.Expr:
    """A computed value in the form in which it lies in memory."""
    if dtype == "bf16":
        return to_bfloat16(value)
    return tvm.cast(tvm.NAMES[dtype], value)


def to_bfloat16(value: tvm.Expr) -> tvm.Expr:
    """The bits of the nearest bfloat16, halves to the even one; NaN stays NaN."""

    def u32(number: int) -> tvm.Expr:
        return tvm.integer(number, "uint32")

    bits = named(tvm.reinterpret("uint32", addressed(tvm.cast("float32", value))))
    odd = (bits >> u32(16)) & u32(1)
    rounded = (bits + u32(0x7FFF) + odd) >> u32(16)
    is_nan = (bits & u32(0x7FFFFFFF)) > u32(0x7F800000)
    return tvm.cast("uint16", tvm.select(is_nan, u32(0x7FC0), rounded))


def ravel(sizes: Sizes, axes: Axes, shape: Sequence[Size]) -> tvm.Expr:
    """The row-major place of an index."""
    total = None
    for axis, size in zip(axes, shape, strict=True):
        if size != 1:
            total = axis if total is None else total * sizes(size) + axis
    return tvm.integer(0) if total is None else total


def unravel(sizes: Sizes, flat: tvm.Expr, shape: Sequence[Size]) -> Axes:
    """The index of a row-major place."""
    axes: list[tvm.Expr] = []
    for size in reversed(shape[1:]):
        # Of an axis of size 0 no element is asked for, but nothing may be divided by it.
        if size in (0, 1):
            axes.append(tvm.integer(0))
            continue
        axes.append(tvm.call("floormod", flat, sizes(size)))
        flat = tvm.call("floordiv", flat, sizes(size))
    if shape:
        axes.append(tvm.integer(0) if shape[0] == 1 else flat)
    return tuple(reversed(axes))


def reshaped(index: Index, shape: tuple[Size, ...]) -> Index:
    """The place of the same element under another shape; axes that stay are not computed anew."""

    def axes() -> Axes:
        made: list[tvm.Expr] = []
        for old, new in groups_of_axes(index.shape, shape):
            before, after = index.shape[old], shape[new]
            if before == after:
                made += index.axes[old]
                continue
            flat = ravel(index.sizes, index.axes[old], before)
            made += unravel(index.sizes, flat, after)
        return tuple(made)

    return Index(index.sizes, shape, axes, lambda: index.flat)


def groups_of_axes(old: tuple[Size, ...], new: tuple[Size, ...]) -> list[tuple[slice, slice]]:
    """The finest runs of axes of either shape that hold equally many elements."""
    found, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        m, n = _shortest(old[i:], new[j:])
        found.append((slice(i, i + m), slice(j, j + n)))
        i, j = i + m, j + n
    return found


def _shortest(old: tuple[Size, ...], new: tuple[Size, ...]) -> tuple[int, int]:
    counts = [(m, n) for m in range(len(old) + 1) for n in range(len(new) + 1) if m or n]
    for m, n in sorted(counts, key=sum):
        left: Size = 1
        right: Size = 1
        for size in old[:m]:
            left = left * size
        for size in new[:n]:
            right = right * size
        if left == right:
            return m, n
    return len(old), len(new)
