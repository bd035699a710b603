"""Kernels compiled without a GPU, and what their binaries say about themselves."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from seqmix.errors import BackendError
from seqmix_triton.kernel import Case, Config, Kernel, interpreted

__all__ = ["TARGETS", "Resources", "Target", "compile_case", "compile_source"]

_NAMES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}
_SIZES = {"i": "i32", "s": "i32"}
_WIDE = {"I": "*i64", "D": "*fp64"}
_ALIGNED = [["tt.divisibility", 16]]


@dataclass(frozen=True)
class Target:
    """A kind of device, with the limits that decide how many warps run at once."""

    name: str
    triton: Any
    shared_per_program: int
    shared_per_core: int
    registers_per_lane: int
    """Registers of one lane's share of a scheduler, over all warps that it holds."""
    most_warps: int
    """Warps of one scheduler; a core has four of them."""
    most_programs: int


_KIB = 1024
TARGETS = {
    t.name: t
    for t in (
        Target("cuda:80", GPUTarget("cuda", 80, 32), 163 * _KIB, 164 * _KIB, 512, 16, 32),
        Target("cuda:90", GPUTarget("cuda", 90, 32), 227 * _KIB, 228 * _KIB, 512, 16, 32),
        Target("hip:gfx942", GPUTarget("hip", "gfx942", 64), 64 * _KIB, 64 * _KIB, 512, 8, 32),
    )
}
_SCHEDULERS = 4


@dataclass(frozen=True)
class Resources:
    """Of one program: registers and spilled bytes per lane, shared bytes, warps."""

    registers: int
    spilled: int
    shared: int
    warps: int

    def occupancy(self, target: Target) -> float:
        """The share of a core's warps that can run at once; 0 when not even one program fits."""
        if self.shared > target.shared_per_program:
            return 0.0
        rounded = max(8, -(-self.registers // 8) * 8)
        warps = min(target.most_warps, target.registers_per_lane // rounded) * _SCHEDULERS
        programs = min(warps // self.warps, target.most_programs)
        if self.shared:
            programs = min(programs, target.shared_per_core // self.shared)
        return programs * self.warps / (target.most_warps * _SCHEDULERS)


def compile_case(kernel: Kernel, case: Case, target: Target, config: Config) -> Resources:
    """Compile for ``target`` and read the binary.

    Raises :class:`BackendError` in Triton's interpreter, which compiles nothing.
    """
    if interpreted():
        raise BackendError("TRITON_INTERPRET=1 compiles nothing; unset it to compile kernels")
    warps = config.warps_of(target.triton.warp_size)
    return compile_source(_source(kernel, case, config), target, warps, config.stages)


def compile_source(source: ASTSource, target: Target, warps: int, stages: int) -> Resources:
    """Compile a function with its signature and constants for ``target`` and read the binary."""
    options = {"num_warps": warps, "num_stages": stages}
    made = triton.compile(source, target=target.triton, options=options)
    if "cubin" in made.asm:
        registers, spilled = _of_cubin(made.asm["cubin"])
    else:
        registers, spilled = _of_amdgcn(made.asm["amdgcn"])
    return Resources(registers, spilled, int(made.metadata.shared), warps)


def _source(kernel: Kernel, case: Case, config: Config) -> Any:
    constants = kernel.constants(case.dtype, case.constants, config)
    constants |= dict.fromkeys(case.absent)
    constants |= {n: 1 for n, code in kernel.arguments.items() if code == "1"}
    names = list(kernel.fn.arg_names)
    signature, attributes = {}, {}
    for index, name in enumerate(names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        signature[name] = _type(kernel, name, case.dtype)
        if kernel.arguments[name] != "i":
            attributes[(index,)] = _ALIGNED
    return ASTSource(kernel.fn, signature, constants, attributes)


def _type(kernel: Kernel, name: str, dtype: torch.dtype) -> str:
    code = kernel.arguments[name]
    if code in _SIZES:
        return _SIZES[code]
    if code in _WIDE:
        return _WIDE[code]
    wide = torch.promote_types(dtype, torch.float32)
    return "*" + _NAMES[dtype if code == "T" else wide]


def _of_cubin(cubin: bytes) -> tuple[int, int]:
    """By the disassembler that Triton's package carries."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # Spilled registers lie on the stack.
    spilled = _number(r"STACK:(\d+)", text) + _number(r"LOCAL:(\d+)", text)
    return _number(r"REG:(\d+)", text), spilled


def _of_amdgcn(text: str) -> tuple[int, int]:
    # The unified file holds the accumulation registers of matrix instructions too.
    return _number(r"TotalNumVgprs: (\d+)", text), _number(r"ScratchSize: (\d+)", text)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise BackendError(f"no '{pattern}' in what the compiler says about a kernel")
    return int(found.group(1))
