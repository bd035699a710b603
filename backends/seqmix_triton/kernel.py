"""One description per kernel, used by the launcher, the compiler ahead of time and the tests."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
import triton
import triton.language as tl

from seqmix.errors import BackendError
from seqmix_triton.config import Config
from seqmix_triton.tuning import fastest, kind_of, sizes_of, tuning

__all__ = [
    "Case",
    "Config",
    "Constants",
    "Kernel",
    "device_of",
    "interpreted",
    "power_of_two",
    "precision_of",
]

Constants: TypeAlias = "Mapping[str, Any]"
Grid: TypeAlias = "Callable[[Mapping[str, int]], tuple[int, ...]]"

_INTERPRETER = threading.RLock()

_TYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}


@dataclass(frozen=True)
class Case:
    """One compilation of a kernel without data: what it is called, its dtype and constants."""

    label: str
    dtype: torch.dtype
    constants: Constants
    absent: tuple[str, ...] = ()
    """Optional arguments that are None."""


def _only_default(dtype: torch.dtype, constants: Constants) -> Sequence[Config]:
    return ()


@dataclass(frozen=True, eq=False)
class Kernel:
    """A Triton function with all that is known about it before it runs.

    ``arguments`` gives each argument that is no constant a code: ``T`` a pointer to the operands'
    dtype, ``A`` one to the accumulators' (float32, float64 for float64), ``I`` one to int64, ``D``
    one to float64, ``i`` a size, ``s`` a stride (a multiple of 16 in the table), ``1`` a stride of
    1. ``default`` gives the configuration that runs untuned, ``space`` the others worth trying. A
    ``hot`` kernel may not spill registers, unless ``spills`` names the reason under "target label".
    Tiles named in
    ``counted`` decide how much memory the callers provide: tuning leaves them as they are.
    """

    fn: Any
    arguments: Mapping[str, str]
    default: Callable[[torch.dtype, Constants], Config]
    cases: Sequence[Case]
    space: Callable[[torch.dtype, Constants], Sequence[Config]] = _only_default
    hot: bool = True
    spills: Mapping[str, str] = field(default_factory=dict)
    counted: tuple[str, ...] = ()
    _forced: list[Config] = field(default_factory=list)
    _chosen: dict[Any, Config] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the Triton function."""
        return str(self.fn.__name__).lstrip("_")

    def launch(
        self, grid: Grid, dtype: torch.dtype, arguments: Mapping[str, Any], constants: Constants
    ) -> None:
        """Run on tensors: ``grid`` gives the number of programs per axis for the tiles chosen."""
        if math.prod(grid(self.choose(dtype, constants).tiles)) == 0:
            return

        def run(config: Config) -> None:
            given = {**self.constants(dtype, constants, config), **arguments}
            warps = config.warps_of(_lanes())
            self.fn[grid(config.tiles)](**given, num_warps=warps, num_stages=config.stages)

        with device_of(arguments):
            if self._forced or not tuning():
                run(self.choose(dtype, constants))
            else:
                run(self._tuned(run, dtype, arguments, constants))

    def choose(self, dtype: torch.dtype, constants: Constants) -> Config:
        """The configuration to run with."""
        return self._forced[-1] if self._forced else self.default(dtype, constants)

    def choices(self, dtype: torch.dtype, constants: Constants) -> list[Config]:
        """What tuning chooses from, the default first."""
        default = self.default(dtype, constants)
        others = (
            config
            for config in self.space(dtype, constants)
            if all(config.tiles[name] == default.tiles[name] for name in self.counted)
        )
        return [default, *others]

    def _tuned(
        self,
        run: Callable[[Config], None],
        dtype: torch.dtype,
        arguments: Mapping[str, Any],
        constants: Constants,
    ) -> Config:
        """The fastest configuration for calls of this kind on the current device."""
        device = torch.cuda.get_device_name()
        key = (device, dtype, tuple(constants.items()), sizes_of(arguments))
        if (known := self._chosen.get(key)) is None:
            source = inspect.getsource(self.fn.fn)
            kind = kind_of(self.name, source, device, dtype, constants, arguments)
            known = self._chosen[key] = fastest(kind, self.choices(dtype, constants), run)
        return known

    def constants(self, dtype: torch.dtype, constants: Constants, config: Config) -> dict[str, Any]:
        """All constants: those given, the tiles, and the types that follow from the dtype."""
        known = {
            "ACC": tl.float64 if dtype == torch.float64 else tl.float32,
            "DOT": _dot_type(dtype),
            "PRECISION": precision_of(dtype),
        }
        own = {name: value for name, value in known.items() if name in self.fn.arg_names}
        return {**own, **constants, **config.tiles}

    @contextlib.contextmanager
    def forced(self, config: Config) -> Iterator[None]:
        """Within this context the kernel runs with ``config``."""
        self._forced.append(config)
        try:
            yield
        finally:
            self._forced.pop()


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, which takes tensors of the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def power_of_two(size: int, least: int = 1) -> int:
    """The smallest power of two that is no less than either."""
    return int(max(least, triton.next_power_of_2(max(1, size))))


def _triton_type(dtype: torch.dtype) -> Any:
    if dtype not in _TYPES:
        raise BackendError(
            f"triton kernels take {', '.join(map(str, _TYPES))}, found {dtype}; cast the operands"
        )
    return _TYPES[dtype]


def _dot_type(dtype: torch.dtype) -> Any:
    """The dtype of a product's operands; the interpreter would multiply the bits of bfloat16."""
    return tl.float32 if interpreted() and dtype == torch.bfloat16 else _triton_type(dtype)


def precision_of(dtype: torch.dtype) -> str:
    """How float32 products are computed: exactly, unless torch was told otherwise."""
    if dtype != torch.float32 or torch.version.hip is not None:
        return "ieee"
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@functools.cache
def _lanes() -> int:
    """Lanes of a warp of the devices at hand, which are of one kind."""
    if interpreted():
        return 32
    return int(triton.runtime.driver.active.get_current_target().warp_size)


def device_of(arguments: Mapping[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on torch's current device, which may not be that of the tensors."""
    if interpreted():
        return _interpreting()
    for value in arguments.values():
        if isinstance(value, torch.Tensor):
            if value.is_cuda:
                return torch.cuda.device(value.device)
            break
    return contextlib.nullcontext()


@contextlib.contextmanager
def _interpreting() -> Iterator[None]:
    """The interpreter changes Triton itself while a kernel runs, for all threads: they take turns.

    It computes in numpy, where what overflows warns; on a device it is infinite without a word.
    """
    with _INTERPRETER, np.errstate(over="ignore"):
        yield
