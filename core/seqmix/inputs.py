"""What an executable asks of its inputs, on every backend the same and before it is reached.

First what is seen without a look at the numbers: names, types, sizes; then the numbers of tokens
and positions, for out of range a backend reads what lies beside a table, or fails in its own words.

Sizes: B batch, S sequence, P past slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from torch import Tensor

from seqmix.arguments import LAST_POSITION, holds_numbers, token_problems
from seqmix.dtypes import dtype_name, torch_dtype
from seqmix.errors import BackendError, ConfigError, did_you_mean
from seqmix.prompts import learned_positions
from seqmix_ir.dims import Dim, Size, evaluate_size, show_size, symbols_of
from seqmix_ir.graph import Graph
from seqmix_ir.types import FLOATS, TensorType

if TYPE_CHECKING:
    from seqmix.config import ModelConfig

__all__ = ["InputCheck", "check_inputs", "resolved"]

_MOST_SHOWN = 8
"""Problems that a message lists: the states of another model are as many as its layers."""


def check_inputs(
    graph: Graph, inputs: Mapping[str, Tensor], *, any_float: bool = False
) -> dict[str, int]:
    """The sizes that ``inputs`` bind, by name of the dimension.

    Raises BackendError that lists every missing and unknown input, wrong dtype, rank or size, and
    every dimension that two inputs bind differently. With ``any_float`` one float is as good as
    another (the judge computes in float64 whatever the graph says).
    """
    wanted = graph.inputs
    if not isinstance(inputs, Mapping):
        found = inputs.__class__.__name__
        raise _refused(graph, [f"inputs should be a mapping from names to tensors, found {found}"])
    problems = [f"input '{n}' {wanted[n].type} is missing" for n in wanted if n not in inputs]
    problems += [f"'{n}' is no input{did_you_mean(n, wanted)}" for n in inputs if n not in wanted]
    present = {n: v.type for n, v in wanted.items() if n in inputs}
    for name, type in present.items():
        problems += _type_problems(name, type, inputs[name], any_float)
    if problems:
        raise _refused(graph, problems)
    binding, source, problems = _bind(present, inputs)
    problems += _bound_problems(graph, binding, source)
    problems += _size_problems(present, inputs, binding)
    if problems:
        raise _refused(graph, problems)
    return binding


class InputCheck:
    """:func:`check_inputs` for one graph that is run again and again, and for numbers of tokens.

    What fits is recognised without a look at the graph: decoding asks once per token. Whatever
    does not fit is left to the function, which says why. With the model's ``config``, token ids and
    positions are looked at too, where they lie on a CPU; with ``wait`` wherever they lie, which is
    for a backend that fetches its inputs to the CPU anyway. ``any_float`` is that of the function.
    """

    def __init__(
        self,
        graph: Graph,
        config: ModelConfig | None = None,
        *,
        any_float: bool = False,
        wait: bool = False,
    ) -> None:
        """Take the types of the inputs apart."""
        self._graph = graph
        self._config = config if {"input_ids", "positions"} <= set(graph.inputs) else None
        self._any_float = any_float
        self._wait = wait
        self._wanted = [
            (name, torch_dtype(value.type.dtype), value.type.rank)
            for name, value in graph.inputs.items()
        ]
        axes = [
            (name, axis, size)
            for name, value in graph.inputs.items()
            for axis, size in enumerate(value.type.shape)
        ]
        self._named = [(n, i, symbol) for n, i, size in axes if (symbol := _name_of(size))]
        self._fixed = [(n, i, size) for n, i, size in axes if isinstance(size, int)]
        self._computed = len(self._named) + len(self._fixed) < len(axes)
        self._bounds = [(d.name, d.min, d.max, d.multiple_of) for d in graph.dims]

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, int]:
        """The sizes that ``inputs`` bind.

        BackendError as :func:`check_inputs` raises it, and for numbers that are out of range.
        """
        sizes = None if self._computed else self._sizes(inputs)
        if sizes is None:
            sizes = check_inputs(self._graph, inputs, any_float=self._any_float)
        if self._config is not None:
            self.tokens(inputs["input_ids"], inputs["positions"])
        return sizes

    def tokens(self, input_ids: Tensor, positions: Tensor) -> None:
        """BackendError for ids and positions, int64 ``[B, S]``, that are out of range."""
        if self._config is None:
            return
        problems = token_problems(
            input_ids, positions, self._config.vocab_size, self._last_position, wait=self._wait
        )
        if problems:
            raise _refused(self._graph, problems)

    @cached_property
    def _last_position(self) -> int:
        """Found at the first run: it asks the plugin that the encoding comes from."""
        known = None if self._config is None else learned_positions(self._config)
        return LAST_POSITION if known is None else known - 1

    def _sizes(self, inputs: Mapping[str, Tensor]) -> dict[str, int] | None:
        """The sizes, or None where anything is not as it should be."""
        if not isinstance(inputs, Mapping) or len(inputs) != len(self._wanted):
            return None
        shapes = {}
        for name, dtype, rank in self._wanted:
            tensor = inputs.get(name)
            if not isinstance(tensor, Tensor) or tensor.dtype != dtype or tensor.ndim != rank:
                return None
            if not holds_numbers(tensor):
                return None
            shapes[name] = tensor.shape
        sizes: dict[str, int] = {}
        for name, axis, symbol in self._named:
            found = shapes[name][axis]
            if sizes.setdefault(symbol, found) != found:
                return None
        if any(shapes[name][axis] != size for name, axis, size in self._fixed):
            return None
        return sizes if self._within_bounds(sizes) else None

    def _within_bounds(self, sizes: Mapping[str, int]) -> bool:
        return all(
            name not in sizes
            or (
                (low <= sizes[name] and (high is None or sizes[name] <= high))
                and sizes[name] % multiple == 0
            )
            for name, low, high, multiple in self._bounds
        )


def resolved(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs with their numbers in memory.

    torch may note that a view is to be negated when it is read; who reads the memory itself would
    see the numbers with the wrong sign.
    """
    return {name: t.resolve_neg() if t.is_neg() else t for name, t in inputs.items()}


def _refused(graph: Graph, problems: list[str]) -> BackendError:
    shown = problems[:_MOST_SHOWN]
    if len(problems) > len(shown):
        shown.append(f"and {len(problems) - len(shown)} more")
    return BackendError(f"graph '{graph.name}': " + "; ".join(shown))


def _type_problems(name: str, type: TensorType, tensor: Tensor, any_float: bool) -> list[str]:
    if not isinstance(tensor, Tensor):
        return [f"input '{name}' should be {type}, found {tensor.__class__.__name__}"]
    if not holds_numbers(tensor):
        return [f"input '{name}' should be {type} in memory, found {_form_of(tensor)} tensor"]
    found = _dtype_of(tensor)
    fits = found == type.dtype or (any_float and {found, type.dtype} <= FLOATS)
    if fits and tensor.ndim == type.rank:
        return []
    return [f"input '{name}' should be {type}, found {found}{list(tensor.shape)}"]


def _form_of(tensor: Tensor) -> str:
    """What a tensor is that does not lie in memory as others do."""
    if tensor.is_meta:
        return "a meta"
    return "a nested" if tensor.is_nested else f"a {tensor.layout}"


def _dtype_of(tensor: Tensor) -> str:
    try:
        return dtype_name(tensor.dtype)
    except ConfigError:
        return str(tensor.dtype)


def _bind(
    types: Mapping[str, TensorType], inputs: Mapping[str, Tensor]
) -> tuple[dict[str, int], dict[str, str], list[str]]:
    """Sizes of the axes that are a plain name, their places, and where two inputs disagree."""
    binding: dict[str, int] = {}
    source: dict[str, str] = {}
    others: dict[str, list[str]] = {}
    for name, type in types.items():
        for axis, (size, actual) in enumerate(zip(type.shape, inputs[name].shape, strict=True)):
            if (symbol := _name_of(size)) is None:
                continue
            place = f"axis {axis} of '{name}'"
            source.setdefault(symbol, place)
            if binding.setdefault(symbol, int(actual)) != actual:
                others.setdefault(symbol, []).append(f"{actual} by {place}")
    problems = [
        f"{symbol} is {binding[symbol]} by {source[symbol]}, but {found[0]}"
        + (f" and others in {len(found) - 1} more places" if len(found) > 1 else "")
        for symbol, found in others.items()
    ]
    return binding, source, problems


@lru_cache(maxsize=1024)
def _name_of(size: Size) -> str | None:
    """The name that a size consists of, if it is nothing but a name."""
    text = show_size(size)
    return text if isinstance(size, Dim) and text.isidentifier() else None


def _bound_problems(
    graph: Graph, binding: Mapping[str, int], source: Mapping[str, str]
) -> list[str]:
    problems = []
    for info in graph.dims:
        value = binding.get(info.name)
        if value is None:
            continue
        found = f"found {value} by {source[info.name]}"
        if value < info.min or (info.max is not None and value > info.max):
            limit = f"at least {info.min}" if value < info.min else f"at most {info.max}"
            problems.append(f"{info.name} should be {limit}, {found}")
        if value % info.multiple_of:
            problems.append(f"{info.name} should be a multiple of {info.multiple_of}, {found}")
    return problems


def _size_problems(
    types: Mapping[str, TensorType], inputs: Mapping[str, Tensor], binding: Mapping[str, int]
) -> list[str]:
    """Axes of a fixed or computed size that have another."""
    problems = []
    for name, type in types.items():
        for axis, (size, actual) in enumerate(zip(type.shape, inputs[name].shape, strict=True)):
            if _name_of(size) or not symbols_of(size) <= set(binding):
                continue
            expected = evaluate_size(size, binding)
            if expected != actual:
                shown = (
                    str(expected) if isinstance(size, int) else f"{show_size(size)} = {expected}"
                )
                problems.append(f"axis {axis} of '{name}' should be {shown}, found {actual}")
    return problems
