"""The numpy interpreter: runs a graph by the definitions of its ops, and checks every result.

Floats of 16 bits are carried as float32 and rounded where a value is declared 16 bits wide. The
judge carries every float as float64 and rounds nothing: it tells what a graph means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from seqmix_ir.binding import bind_dims
from seqmix_ir.defn import Array
from seqmix_ir.dims import Size, evaluate_size
from seqmix_ir.errors import IRError, did_you_mean
from seqmix_ir.graph import Block, Graph, Module, Op, Value
from seqmix_ir.types import FLOATS, DType, TensorType

__all__ = ["NUMPY_DTYPES", "Interpreter", "WeightSource", "evaluate_op"]

WeightSource: TypeAlias = "Mapping[str, Array] | Callable[[str], Array]"

NUMPY_DTYPES: dict[DType, np.dtype[Any]] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}
_NARROW = ("f16", "bf16")


class Interpreter:
    """Runs the graphs of one module. Widened weights are kept between runs."""

    def __init__(self, module: Module, weights: WeightSource, judge: bool = False) -> None:
        """``weights`` is a mapping or a function from weight name to array."""
        self.module = module
        self.judge = judge
        self._lookup = weights
        self._types = module.weights()
        self._cache: dict[str, Array] = {}
        self._last_uses: dict[Block, list[tuple[Value, ...]]] = {}

    def run(self, graph_name: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, in their declared dtype (the judge gives float64 for every float)."""
        graph = self.module.graph(graph_name)
        _check_names(graph, inputs)
        arrays = {name: np.asarray(inputs[name]) for name in graph.inputs}
        for name, value in graph.inputs.items():
            self._check_dtype(f"@{graph.name}: input %{name}", arrays[name], value.type)
        sizes = bind_dims(graph, {name: a.shape for name, a in arrays.items()})
        frame = _Frame(self, sizes)
        with np.errstate(all="ignore"):
            entered = (frame.widen(arrays[n], v.type.dtype) for n, v in graph.inputs.items())
            results = frame.block(graph.block, tuple(entered))
            return {
                name: frame.narrow(array, value.type.dtype)
                for (name, value), array in zip(graph.results.items(), results, strict=True)
            }

    def weight(self, name: str) -> Array:
        """The weight called ``name`` in the dtype that ops compute with."""
        if (known := self._cache.get(name)) is not None:
            return known
        if (type := self._types.get(name)) is None:
            raise IRError(f"module '{self.module.name}' declares no weight '{name}'")
        stored = np.asarray(self._stored(name))
        self._check_dtype(f"weight '{name}'", stored, type)
        if stored.shape != type.shape:
            raise IRError(
                f"weight '{name}' of module '{self.module.name}' is {type}, found an array of "
                f"shape {list(stored.shape)}; give the weights of this model"
            )
        return self._cache.setdefault(name, _widened(stored, type.dtype, self.judge))

    def last_uses(self, block: Block) -> list[tuple[Value, ...]]:
        """For each op of ``block``, the values that nothing needs after it."""
        if (known := self._last_uses.get(block)) is None:
            known = self._last_uses[block] = _last_uses(block)
        return known

    def _stored(self, name: str) -> Array:
        if callable(self._lookup):
            return self._lookup(name)
        if name not in self._lookup:
            hint = did_you_mean(name, self._lookup)
            raise IRError(f"weight '{name}' is missing from the {len(self._lookup)} given{hint}")
        return self._lookup[name]

    def _check_dtype(self, what: str, array: Array, type: TensorType) -> None:
        """IRError unless the array has the declared dtype; the judge takes any float as one."""
        expected = NUMPY_DTYPES[type.dtype]
        wide = self.judge and type.dtype in FLOATS and array.dtype in _FLOAT_DTYPES
        if array.dtype != expected and not wide:
            raise IRError(f"{what} is {array.dtype}, expected {expected} ({type}); convert it")


_FLOAT_DTYPES = frozenset(d for name, d in NUMPY_DTYPES.items() if name in FLOATS)


def evaluate_op(
    op: Op,
    operands: Sequence[Array | None],
    sizes: Mapping[str, int] | None = None,
    judge: bool = False,
) -> tuple[Array, ...]:
    """Results of one op on arrays of its declared dtypes, without a module around it.

    ``sizes`` binds the names that the op's types mention. There are no weights.
    """
    frame = _Frame(Interpreter(Module("op"), {}, judge), dict(sizes or {}))
    wide = tuple(
        None if a is None or v is None else frame.widen(np.asarray(a), v.type.dtype)
        for a, v in zip(operands, op.operands, strict=True)
    )
    with np.errstate(all="ignore"):
        results = frame.apply(op, wide)
        return tuple(
            frame.narrow(array, value.type.dtype)
            for array, value in zip(results, op.results, strict=True)
        )


class _Frame:
    """One run: bound sizes, and the shapes evaluated from them. It is the ``Run`` of the ops."""

    def __init__(self, owner: Interpreter, sizes: dict[str, int]) -> None:
        self.judge = owner.judge
        self._owner = owner
        self._sizes = sizes
        self._shapes: dict[Value, tuple[int, ...]] = {}

    def dtype(self, dtype: DType) -> np.dtype[Any]:
        """The numpy dtype in which results of ``dtype`` are computed."""
        if dtype not in FLOATS:
            return NUMPY_DTYPES[dtype]
        wide = self.judge or dtype == "f64"
        return NUMPY_DTYPES["f64" if wide else "f32"]

    def size(self, size: Size) -> int:
        """The bound value of a symbolic size."""
        return evaluate_size(size, self._sizes)

    def weight(self, name: str) -> Array:
        """The weight called ``name``."""
        return self._owner.weight(name)

    def block(self, body: Block, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """Run a region on its parameters."""
        values: dict[Value, Array] = dict(zip(body.params, inputs, strict=True))
        for op, dead in zip(body.ops, self._owner.last_uses(body), strict=True):
            operands = tuple(None if v is None else values[v] for v in op.operands)
            values.update(zip(op.results, self.apply(op, operands), strict=True))
            for value in dead:
                values.pop(value, None)
        return tuple(values[v] for v in body.results)

    def apply(self, op: Op, operands: tuple[Array | None, ...]) -> tuple[Array, ...]:
        """Results of one op, checked against their types and rounded to them."""
        region = {} if op.body is None else {"body": op.body}
        try:
            results = op.defn.evaluate(self, *operands, **region)
            if len(results) != len(op.results):
                raise IRError(f"{len(results)} results, expected {len(op.results)}")
            return tuple(
                self._checked(np.asarray(array), value)
                for array, value in zip(results, op.results, strict=True)
            )
        except IRError as error:
            raise IRError(f"{op.loc}: '{op.name}': {error}") from error
        except Exception as error:
            error.add_note(f"{op.loc}: while '{op.name}' was evaluated")
            raise

    def widen(self, array: Array, dtype: DType) -> Array:
        """An array of a declared dtype as ops want it."""
        return _widened(array, dtype, self.judge)

    def narrow(self, array: Array, dtype: DType) -> Array:
        """A result of an op as callers want it: in its declared dtype, except in the judge."""
        return array if self.judge else array.astype(NUMPY_DTYPES[dtype], copy=False)

    def _checked(self, array: Array, value: Value) -> Array:
        shape = self._shapes.get(value)
        if shape is None:
            shape = self._shapes[value] = tuple(map(self.size, value.type.shape))
        if array.shape != shape:
            raise IRError(f"a result has shape {array.shape}, its type {value.type} says {shape}")
        dtype = value.type.dtype
        wanted = self.dtype(dtype)
        if array.dtype != wanted:
            if array.dtype.kind != wanted.kind or wanted.kind != "f":
                raise IRError(f"a result is {array.dtype}, its type {value.type} says {wanted}")
            array = array.astype(wanted)
        if dtype in _NARROW and not self.judge:
            return array.astype(NUMPY_DTYPES[dtype]).astype(wanted)
        return array


def _widened(array: Array, dtype: DType, judge: bool) -> Array:
    if dtype not in FLOATS:
        return array
    return array.astype(np.float64 if judge or dtype == "f64" else np.float32, copy=False)


def _check_names(graph: Graph, inputs: Iterable[str]) -> None:
    given, known = set(inputs), graph.inputs
    for name in sorted(given - set(known)):
        raise IRError(
            f"@{graph.name} has no input '{name}'{did_you_mean(name, known)}; "
            f"it takes {', '.join(known)}"
        )
    if missing := [name for name in known if name not in given]:
        raise IRError(f"@{graph.name} needs {', '.join(missing)}, which is not given")


def _last_uses(block: Block) -> list[tuple[Value, ...]]:
    kept: set[Value] = set(block.results)
    dead: list[tuple[Value, ...]] = []
    for op in reversed(block.ops):
        # Results that nobody reads die at once; operands die at their last reader.
        fresh = {v for v in (*op.operands, *op.results) if v is not None and v not in kept}
        dead.append(tuple(fresh))
        kept |= fresh
    dead.reverse()
    return dead
