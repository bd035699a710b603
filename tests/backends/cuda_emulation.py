"""The CUDA source of a library as a module that runs on the CPU, thread by thread.

``cuda_emulation.h`` says how. Each kernel becomes a function with TVM's calling convention: its
parameters, then the numbers of blocks and threads.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from shutil import which
from typing import Any

import tvm
import tvm_ffi

__all__ = ["COMPILER", "emulated"]

COMPILER = which("g++")
"""The compiler that the emulation needs."""

_HEADER = Path(__file__).with_name("cuda_emulation.h")
_KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\(\d+\) (\w+)\((.*?)\);')
_PARAMETER = re.compile(r"(.*?)(\w+)$")


def emulated(source: str, functions: str, folder: Path) -> Any:
    """The module that host code finds its kernels in; made in ``folder``."""
    _stay_on_the_cpu()
    infos = tvm.ir.load_json(functions)
    first = source.find('extern "C" __global__')
    parts = [_HEADER.read_text(encoding="utf-8"), source[first:] if first >= 0 else ""]
    for name, parameters in _KERNEL.findall(source):
        parts.append(_entry(name, parameters.split(", "), list(infos[name].launch_param_tags)))
    text, library = folder / "kernels.cpp", folder / "kernels.so"
    text.write_text("\n".join(parts), encoding="utf-8")
    _compile(text, library)
    return tvm.runtime.load_module(str(library))


def _entry(name: str, parameters: list[str], tags: list[str]) -> str:
    given = [_argument(p, i) for i, p in enumerate(parameters)]
    launch = {tag: f"(int)args[{len(given) + i}].number" for i, tag in enumerate(tags)}
    sizes = ", ".join(launch.get(t, "1") for t in ("blockIdx.x", "threadIdx.x", "threadIdx.y"))
    return f"""
extern "C" __attribute__((visibility("default")))
int __tvm_ffi_{name}(void*, const Argument* args, std::int32_t, Argument*) {{
  const char* failure = emulation::run_grid({sizes}, [&] {{ {name}({", ".join(given)}); }});
  if (failure) TVMFFIErrorSetRaisedFromCStr("RuntimeError", failure);
  return failure ? -1 : 0;
}}"""


def _argument(parameter: str, place: int) -> str:
    found = _PARAMETER.match(parameter)
    if found is None:
        raise ValueError(f"a parameter that is not understood: {parameter}")
    kind = found[1].replace("__restrict__", "").strip()
    member = "pointer" if "*" in kind else "real" if kind in ("float", "double") else "number"
    return f"({kind})args[{place}].{member}"


def _compile(text: Path, library: Path) -> None:
    if COMPILER is None:
        raise RuntimeError("there is no g++")
    flags = ["-O1", "-std=c++17", "-shared", "-fPIC", "-w", "-ffp-contract=off"]
    flags += ["-fno-strict-aliasing"]
    done = subprocess.run(
        [COMPILER, *flags, "-o", str(library), str(text)], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{text}: {done.stderr[:4000]}")


@cache
def _stay_on_the_cpu() -> None:
    """Host code chooses its device before each kernel: there is none to choose."""
    tvm_ffi.register_global_func("__tvm_set_device", lambda *device: None, override=True)
