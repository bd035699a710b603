"""From CUDA C to machine code with nvcc, which needs no GPU; and what each kernel takes up.

The figures are those of ptxas: registers of a thread, bytes of shared memory of a block, bytes of a
thread's stack, bytes of registers that are spilled to it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which

from seqmix.errors import BackendError

__all__ = ["ARCHITECTURES", "architecture_of", "assembled", "kernel_threads", "nvcc"]

ARCHITECTURES = (80, 86, 89, 90)
"""Compute capabilities, without the point, that targets name: ``cuda:80``, ``cuda:90`` .."""

_TARGET = re.compile(r"cuda:(\d+)")
_KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\((\d+)\) (\w+)\([^;{]*\);')
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def architecture_of(target: str) -> str:
    """``sm_90`` of the target ``cuda:90``; BackendError for one that is not known."""
    found = _TARGET.fullmatch(target)
    if found is None or int(found[1]) not in ARCHITECTURES:
        known = ", ".join(f"cuda:{number}" for number in ARCHITECTURES)
        raise BackendError(
            f"backend 'tvm' has no target '{target}'; known: cpu, and GPUs by their compute "
            f"capability: {known}"
        )
    return f"sm_{found[1]}"


def nvcc() -> str | None:
    """The path of nvcc, on the search path or where CUDA_HOME says; None where there is none."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return which("nvcc") or (which("nvcc", path=str(Path(home) / "bin")) if home else None)


def assembled(source: Path, arch: str, binary: Path) -> dict[str, dict[str, int]]:
    """Assemble a file; the figures of its kernels, by name. BackendError where nvcc refuses it."""
    compiler = nvcc()
    if compiler is None:
        raise BackendError(f"{source}: nvcc is needed to assemble it; set CUDA_HOME to a toolkit")
    # Not --use_fast_math: it rounds quotients and roots another way, and flushes small numbers.
    command = [compiler, "-cubin", "-O3", f"-arch={arch}", "-Xptxas", "-v", "-w"]
    done = subprocess.run(
        [*command, "-o", str(binary), str(source)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BackendError(f"{source}: nvcc failed for {arch}: {done.stderr[-2000:]}")
    threads = kernel_threads(source.read_text(encoding="utf-8"))
    return {
        name: {"threads": threads.get(name, 0), **figures}
        for name, figures in _figures(done.stderr + done.stdout)
    }


def kernel_threads(source: str) -> dict[str, int]:
    """The threads of a block of each kernel in a source."""
    return {name: int(count) for count, name in _KERNEL.findall(source)}


def _figures(log: str) -> Iterator[tuple[str, dict[str, int]]]:
    parts = _ENTRY.split(log)[1:]
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        frame, used, shared = _FRAME.search(text), _USED.search(text), _SHARED.search(text)
        if frame is None or used is None:
            raise BackendError(f"ptxas says nothing of '{name}' that is understood: {text[:200]}")
        yield (
            name,
            {
                "registers": int(used[1]),
                "shared": 0 if shared is None else int(shared[1]),
                "stack": int(frame[1]),
                "spills": int(frame[2]) + int(frame[3]),
            },
        )
