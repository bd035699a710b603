"""What a process takes of the machine's memory: the peak, and how to start it anew."""

from __future__ import annotations

import ctypes
import gc
import re
import resource
import sys
from pathlib import Path

__all__ = ["forget_peak", "give_back", "peak"]

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def peak() -> float:
    """The most memory that this process has had since :func:`forget_peak`, in MiB.

    Where the system cannot forget, since its start.
    """
    if _STATUS.exists() and (found := re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())):
        return int(found[1]) / 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2**20 if sys.platform == "darwin" else most / 1024


def forget_peak() -> bool:
    """Start the peak anew from what is taken now; whether the system can do that."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def give_back() -> None:
    """Hand what nobody needs any more back to the system, as far as that is possible."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
