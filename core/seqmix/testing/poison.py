"""Memory that nobody wrote reads as NaN, so that whoever uses it is seen."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["poisoned", "uses_fft"]

# torch makes its attribute at run time, where no type checker sees it.
_MEMORY: Any = torch.utils.deterministic


@contextmanager
def poisoned(active: bool = True) -> Iterator[None]:
    """``torch.empty`` gives NaN (integers: their largest value) while the context lasts.

    Keep it from what stands before a Fourier transform: that spreads one NaN over everything,
    also where a later step would have cut it off.
    """
    if not active:
        yield
        return
    fill = _MEMORY.fill_uninitialized_memory
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        # An op without a deterministic form is as good as ever; only the filling is wanted here.
        warnings.filterwarnings("ignore", message=".*deterministic.*")
        torch.use_deterministic_algorithms(True, warn_only=True)
        _MEMORY.fill_uninitialized_memory = True
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
            _MEMORY.fill_uninitialized_memory = fill


def uses_fft(call: Callable[[], Any]) -> bool:
    """Whether a call comes to a Fourier transform of torch."""
    # torch does not annotate the constructor of a mode.
    watch = _Watch()  # type: ignore[no-untyped-call]
    with watch:
        call()
    return bool(watch.seen)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= "_fft_" in str(func)
        return func(*args, **(kwargs or {}))
