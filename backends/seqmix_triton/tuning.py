"""The fastest configuration of a kernel, measured once per device and kind of call, and kept.

Without ``SEQMIX_TRITON_TUNE=1`` every kernel runs with its default configuration. With it, the
first call of a kind (dtype, constants, size to a power of two) times the default and all of the
kernel's ``space`` on its own operands. Results are kept in seqmix's cache on disk, per device,
version of Triton and source of the kernel; no kernel reads what it writes, so that runs repeat.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import triton

from seqmix import cache
from seqmix.reading import UnreadableError, parse_json
from seqmix_triton.config import Config

__all__ = ["VARIABLE", "fastest", "kind_of", "sizes_of", "tuning"]

VARIABLE = "SEQMIX_TRITON_TUNE"
Timer: TypeAlias = "Callable[[Callable[[], None]], float]"
Run: TypeAlias = "Callable[[Config], None]"

_TOO_BIG = (triton.runtime.errors.OutOfResources, triton.CompilationError)
"""What a configuration raises that the device has no room for."""


def tuning() -> bool:
    """Whether configurations are measured; never in the interpreter, whose times say nothing."""
    wanted = os.environ.get(VARIABLE, "0") not in ("", "0")
    return wanted and os.environ.get("TRITON_INTERPRET", "0") != "1"


def kind_of(
    name: str,
    source: str,
    device: str,
    dtype: torch.dtype,
    constants: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> str:
    """What one measurement holds for, as text: numbers of elements count to a power of two."""
    about = {
        "kernel": name,
        "source": hashlib.sha256(source.encode()).hexdigest(),
        "device": device,
        "triton": triton.__version__,
        "dtype": str(dtype),
        "constants": {key: repr(value) for key, value in sorted(constants.items())},
        "sizes": sizes_of(arguments),
    }
    return json.dumps(about, sort_keys=True)


def sizes_of(arguments: Mapping[str, Any]) -> tuple[int, ...]:
    """How large the tensors are, to a power of two."""
    tensors = (value for value in arguments.values() if isinstance(value, torch.Tensor))
    return tuple(tensor.numel().bit_length() for tensor in tensors)


def fastest(kind: str, space: Sequence[Config], run: Run, timer: Timer | None = None) -> Config:
    """The configuration of ``space`` that runs fastest, the first one where none runs.

    ``run`` runs the kernel with one. What was found for ``kind`` is not measured again.
    """
    measured = cache.remember("triton-tuning", kind, lambda: _measure(space, run, timer))
    return _read(measured, space)


def _measure(space: Sequence[Config], run: Run, timer: Timer | None) -> str:
    timer = timer or _median_of
    times = [_time(config, run, timer) for config in space]
    best = min(range(len(space)), key=times.__getitem__)
    return json.dumps({**dataclasses.asdict(space[best]), "milliseconds": times[best]})


def _time(config: Config, run: Run, timer: Timer) -> float:
    try:
        return timer(lambda: run(config))
    except _TOO_BIG:
        return float("inf")


def _median_of(work: Callable[[], None]) -> float:
    from triton.testing import do_bench

    return float(do_bench(work, return_mode="median"))


def _read(measured: str, space: Sequence[Config]) -> Config:
    """The configuration of the space that a measurement names; the first one where none is."""
    try:
        content = parse_json(measured)
        named = Config(content["tiles"], content["warps"], content["stages"])
    except (UnreadableError, KeyError, TypeError):
        return space[0]
    return next((config for config in space if config == named), space[0])
