"""What an op means: one frozen dataclass per op, whose fields are the attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar, dataclass_transform

import numpy as np
from numpy.typing import NDArray

from seqmix_ir.dims import Size
from seqmix_ir.errors import IRError
from seqmix_ir.types import DType, TensorType

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder
    from seqmix_ir.graph import Block, Op, Value

__all__ = ["Array", "Decomposition", "Example", "OpDef", "Run", "op"]

Array: TypeAlias = NDArray[Any]
Decomposition: TypeAlias = "Callable[[Builder, Op], tuple[Value, ...]]"


class Run(Protocol):
    """What an op may ask of the interpreter while it is evaluated."""

    @property
    def judge(self) -> bool:
        """True when every float is carried as float64: casts and accumulators widen too."""

    def dtype(self, dtype: DType) -> np.dtype[Any]:
        """The numpy dtype in which results of ``dtype`` are computed (f16, bf16: float32)."""

    def size(self, size: Size) -> int:
        """The bound value of a symbolic size."""

    def weight(self, name: str) -> Array:
        """The weight called ``name``."""

    def block(self, body: Block, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """Run a region on its parameters."""


@dataclasses.dataclass(frozen=True)
class Example:
    """One application of an op that the conformance kit checks everywhere.

    Float operands are float64 arrays; the kit narrows them to each dtype it checks. ``body`` makes
    the region of an op that has one, for a given float dtype.
    """

    defn: OpDef
    operands: tuple[Array | None, ...]
    body: Callable[[DType], Block] | None = None


class OpDef:
    """The whole meaning of one op. Subclass it, decorate with :func:`op`, fill in the methods.

    ``operands`` names the operands in order: ``"x"`` must be there, ``"bias?"`` may be absent
    (an explicit ``None``, written ``none`` in text), ``"*xs"`` (only, or last) takes any number.
    ``results`` names the results; a variadic ``"*ys"`` leaves the count to ``infer``.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    operands: ClassVar[tuple[str, ...]]
    results: ClassVar[tuple[str, ...]]
    region: ClassVar[bool] = False

    def infer(self, *operands: Any, **region: Any) -> tuple[TensorType, ...]:
        """Result types from operand types (``TensorType``, or ``None`` where absent).

        Ops with ``region = True`` also receive ``body=Block``. Raises :class:`IRError` with both
        sides named; the caller adds the location.
        """
        raise IRError(f"op '{self.name}' does not define infer")

    def evaluate(self, run: Run, *operands: Any, **region: Any) -> tuple[Array, ...]:
        """The definition of the op, on numpy arrays; ops with a region also receive ``body``.

        f16 and bf16 operands arrive as float32, in the judge every float is float64; the
        interpreter rounds the results to their declared type, so no op casts its results itself.
        """
        raise IRError(f"op '{self.name}' does not define evaluate")

    def decompositions(self) -> Mapping[str, Decomposition]:
        """Ways to write the op in simpler ops, by style; empty for a primitive."""
        return {}

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        """Applications that show what the op does, of odd sizes on purpose; small, and a few."""
        return ()

    def attributes(self) -> dict[str, Any]:
        """Attribute values by name, in order of declaration."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    def check_count(self, count: int) -> None:
        """IRError unless ``count`` operands fit the signature."""
        variadic = bool(self.operands) and self.operands[-1].startswith("*")
        fixed = len(self.operands) - variadic
        if count == fixed or (variadic and count >= fixed):
            return
        wanted = f"at least {fixed}" if variadic else str(fixed)
        names = ", ".join(self.operands)
        raise IRError(f"'{self.name}' takes {wanted} operands ({names}), got {count}")


OpClass = TypeVar("OpClass", bound=type[OpDef])


@dataclass_transform(frozen_default=True)
def op(cls: OpClass) -> OpClass:
    """Class decorator: freeze the attributes and check that the class says what it is.

    It registers nothing: an op enters an op table by hand or by entry point.
    """
    for required in ("name", "operands", "results"):
        if not hasattr(cls, required):
            raise IRError(
                f"op class {cls.__module__}.{cls.__qualname__} has no '{required}'; "
                "set it as a class variable"
            )
    frozen: OpClass = dataclasses.dataclass(frozen=True)(cls)  # type: ignore[assignment]
    return frozen
