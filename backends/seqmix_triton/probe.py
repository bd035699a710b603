"""Whether Triton can run here, and what to do where it cannot."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig

import torch

from seqmix.backend import Availability

__all__ = ["probe"]

_OLDEST_TRITON = (3, 6)
_OLDEST_CAPABILITY = (8, 0)
"""Of NVIDIA devices: bfloat16 products begin there."""


def probe() -> Availability:
    """The devices that kernels run on, or the first reason why there is none."""
    if reason := _without_triton():
        return Availability((), reason)
    if os.environ.get("TRITON_INTERPRET", "0") == "1":
        return Availability(("cpu",))
    reason = _without_device() or _without_compiler()
    return Availability((), reason) if reason else Availability(("cuda",))


def _without_triton() -> str:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; pip install 'seqmix[triton]'"
    import triton

    version = getattr(triton, "__version__", "0")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < _OLDEST_TRITON:
        wanted = ".".join(map(str, _OLDEST_TRITON))
        return f"Triton {version} is too old, {wanted} or newer is needed; upgrade it with torch"
    return ""


def _without_device() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"torch {torch.__version__} is built for CPUs alone; install a CUDA or ROCm build of "
            "torch, or set TRITON_INTERPRET=1 to run kernels slowly on the CPU"
        )
    if not torch.cuda.is_available():
        return f"torch finds no device: {_why_none()}"
    if torch.version.hip is None and torch.cuda.get_device_capability() < _OLDEST_CAPABILITY:
        found = ".".join(map(str, torch.cuda.get_device_capability()))
        wanted = ".".join(map(str, _OLDEST_CAPABILITY))
        return (
            f"{torch.cuda.get_device_name()} has compute capability {found}, {wanted} or newer is "
            "needed; use backend 'torch'"
        )
    return ""


def _why_none() -> str:
    """What torch says when it is asked to use a device: no driver, or one that is too old."""
    try:
        torch.empty(0, device="cuda")
    except (AssertionError, RuntimeError) as error:
        return f"{str(error).splitlines()[0]}; install or update the driver of the device"
    return "is one visible (CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES)?"


def _without_compiler() -> str:
    """Triton builds the launcher of a kernel with a C compiler."""
    named = os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "").split(" ")[0]
    if any(shutil.which(name) for name in (named, "cc", "gcc", "clang") if name):
        return ""
    return "Triton needs a C compiler, none is on the path; install gcc or clang, or set CC"
