"""What executables have in common: they check their inputs, and describe themselves on disk."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from seqmix import registry
from seqmix.backend import Report
from seqmix.dtypes import dtype_name, torch_dtype
from seqmix.errors import BackendError, ConfigError, did_you_mean
from seqmix_ir.dims import Dim, Size, evaluate_size, show_size, symbols_of
from seqmix_ir.graph import Graph, Module
from seqmix_ir.text import parse, show
from seqmix_ir.types import FLOATS, TensorType

__all__ = [
    "MANIFEST",
    "MODULE_FILE",
    "InputCheck",
    "check_inputs",
    "check_options",
    "read_manifest",
    "read_module",
    "write_manifest",
    "write_module",
]

MANIFEST = "seqmix.json"
"""The file that names the backend of a saved executable."""

MODULE_FILE = "module.txt"
FORMAT = 1


def check_inputs(
    graph: Graph, inputs: Mapping[str, Tensor], *, any_float: bool = False
) -> dict[str, int]:
    """The sizes that ``inputs`` bind, by name of the dimension.

    Raises BackendError that lists every missing and unknown input, wrong dtype, rank or size, and
    every dimension that two inputs bind differently. With ``any_float`` one float is as good as
    another (the judge computes in float64 whatever the graph says).
    """
    wanted = graph.inputs
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
    """:func:`check_inputs` for one graph that is run again and again.

    What fits is recognised without a look at the graph: decoding asks once per token. Whatever
    does not fit is left to the function, which says why.
    """

    def __init__(self, graph: Graph) -> None:
        """Take the types of the inputs apart."""
        self._graph = graph
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
        """The sizes that ``inputs`` bind; BackendError as :func:`check_inputs` raises it."""
        sizes = None if self._computed else self._sizes(inputs)
        return check_inputs(self._graph, inputs) if sizes is None else sizes

    def _sizes(self, inputs: Mapping[str, Tensor]) -> dict[str, int] | None:
        """The sizes, or None where anything is not as it should be."""
        if len(inputs) != len(self._wanted):
            return None
        shapes = {}
        for name, dtype, rank in self._wanted:
            tensor = inputs.get(name)
            if not isinstance(tensor, Tensor) or tensor.dtype != dtype or tensor.ndim != rank:
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


def check_options(backend: str, options: Mapping[str, Any], known: Mapping[str, type]) -> None:
    """BackendError for an option that is not in ``known``, or is not of its type."""
    for name, value in options.items():
        if name not in known:
            raise BackendError(
                f"backend '{backend}' has no option '{name}'{did_you_mean(name, known)}; "
                f"known: {', '.join(known) or 'none'}"
            )
        if not isinstance(value, known[name]):
            raise BackendError(
                f"backend '{backend}': option '{name}' should be {known[name].__name__}, "
                f"found {value!r}"
            )


def write_manifest(directory: Path | str, report: Report, **more: Any) -> None:
    """Write ``seqmix.json``: the backend's name, its report, and whatever else ``load`` needs."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    content = {"format": FORMAT, "backend": report.backend, "report": dataclasses.asdict(report)}
    text = json.dumps({**content, **more}, indent=2) + "\n"
    (directory / MANIFEST).write_text(text, encoding="utf-8")


def read_manifest(directory: Path) -> tuple[Report, dict[str, Any]]:
    """The report, and the whole of ``seqmix.json``; BackendError when it is missing or broken."""
    path = directory / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise BackendError(
                f"{path}: format {content['format']} is not {FORMAT}; compile the model again"
            )
        return Report(**content["report"]), content
    except FileNotFoundError as error:
        raise BackendError(
            f"{directory}: has no {MANIFEST}; expected what Executable.save wrote"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BackendError(f"{path}: cannot be read: {error}; compile the model again") from error


def write_module(directory: Path | str, module: Module) -> None:
    """Write a module as text, ``module.txt``."""
    (Path(directory) / MODULE_FILE).write_text(show(module), encoding="utf-8")


def read_module(directory: Path) -> Module:
    """Read what :func:`write_module` wrote; ops of plugins come through the registry."""
    path = directory / MODULE_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BackendError(f"{path}: cannot be read: {error}; compile the model again") from error
    return parse(text, registry.op_table(), str(path))


def _refused(graph: Graph, problems: list[str]) -> BackendError:
    return BackendError(f"graph '{graph.name}': " + "; ".join(problems))


def _type_problems(name: str, type: TensorType, tensor: Tensor, any_float: bool) -> list[str]:
    if not isinstance(tensor, Tensor):
        return [f"input '{name}' should be {type}, found {tensor.__class__.__name__}"]
    found = _dtype_of(tensor)
    fits = found == type.dtype or (any_float and {found, type.dtype} <= FLOATS)
    if fits and tensor.ndim == type.rank:
        return []
    return [f"input '{name}' should be {type}, found {found}{list(tensor.shape)}"]


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
    problems = []
    for name, type in types.items():
        for axis, (size, actual) in enumerate(zip(type.shape, inputs[name].shape, strict=True)):
            if (symbol := _name_of(size)) is None:
                continue
            place = f"axis {axis} of '{name}'"
            known = binding.setdefault(symbol, int(actual))
            source.setdefault(symbol, place)
            if known != actual:
                problems.append(f"{symbol} is {known} by {source[symbol]}, but {actual} by {place}")
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
