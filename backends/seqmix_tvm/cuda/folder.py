"""The files of a library's kernels for a GPU: source or machine code, and their parameters."""

from __future__ import annotations

from pathlib import Path

from seqmix.backend import Report
from seqmix.progress import counted
from seqmix.whole_file import write_whole
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.cuda.compiler import assembled, kernel_threads, nvcc
from seqmix_tvm.lower import Lowered

__all__ = ["binary_of", "build_device", "parameters_of", "source_of"]


def source_of(name: str) -> str:
    """The file of a graph's kernels in CUDA C."""
    return f"{name}.cu"


def binary_of(name: str) -> str:
    """The file of a graph's kernels in machine code."""
    return f"{name}.cubin"


def parameters_of(name: str) -> str:
    """The file that says what parameters a graph's kernels have."""
    return f"{name}.kernels.json"


def build_device(
    folder: Path, name: str, lowered: Lowered, arch: str, mcpu: str, report: Report
) -> list[str]:
    """Build host library and kernels of a graph; the names of the files but the library.

    Without nvcc the kernels stay what they are: source, which is assembled where it runs.
    """
    source, binary = folder / source_of(name), folder / binary_of(name)
    text, parameters = tvm.build_cuda(
        lowered.module, set(lowered.kernels), arch, mcpu, folder / f"{name}.so"
    )
    write_whole(source, text)
    write_whole(folder / parameters_of(name), parameters)
    files = [source.name, parameters_of(name)]
    threads = kernel_threads(text)
    if nvcc() is None:
        report.notes.append(
            f"there is no nvcc: the kernels of '{name}' lie in the folder as source"
        )
        report.resources.update({kernel: {"threads": n} for kernel, n in threads.items()})
        return files
    counted("kernels assembled", 0, len(threads))
    report.resources.update(assembled(source, arch, binary) if threads else {})
    return [*files, binary.name] if binary.is_file() else files
