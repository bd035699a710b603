"""Generated kernels compiled without a GPU: those of a model, each once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from triton.compiler import ASTSource

from seqmix.errors import BackendError
from seqmix_ir.dims import Size, evaluate_size
from seqmix_ir.types import TensorType
from seqmix_triton.binaries import TARGETS, Resources, Target, compile_source
from seqmix_triton.codegen.generated import Generated
from seqmix_triton.codegen.launched import GeneratedKernel
from seqmix_triton.codegen.scan_kernel import ScanKernel
from seqmix_triton.codegen.sources import code_of
from seqmix_triton.kernel import interpreted

__all__ = ["EXAMPLE", "GeneratedRow", "compile_generated", "generated_rows"]

EXAMPLE: Mapping[str, int] = {"B": 4, "S": 512, "P": 0}
"""Sizes that the table is made for: they decide on blocks, nothing else."""

_POINTERS = {
    "f64": "*fp64", "f32": "*fp32", "f16": "*fp16", "bf16": "*bf16", "i64": "*i64", "i32": "*i32",
    "i8": "*i8", "u8": "*u8", "bool": "*i1",
}  # fmt: skip
_ALIGNED = [["tt.divisibility", 16]]
_PARKED = 16


@dataclass(frozen=True)
class GeneratedRow:
    """One compilation of a generated kernel."""

    name: str
    uses: int
    target: Target
    blocks: str
    used: Resources
    scan: bool

    @property
    def problem(self) -> str:
        """What is wrong with it; empty if nothing is."""
        if self.used.occupancy(self.target) == 0:
            return "does not fit the device"
        return "spills registers" if self.used.spilled > _PARKED and not self.scan else ""

    def __str__(self) -> str:
        """A line of the table."""
        used = self.used
        line = (
            f"{self.target.name:<11}{self.name[:56]:<58}{self.uses:>5}  {self.blocks:<22}"
            f"{used.warps:>6}{used.registers:>6}{used.spilled:>7}{used.shared:>8}"
            f"{used.occupancy(self.target):>8.0%}"
        )
        return line + (f"  FAILS: {self.problem}" if self.problem else "")


def generated_rows(
    generated: Generated, targets: tuple[str, ...], seen: set[str] | None = None
) -> Iterator[GeneratedRow]:
    """Compile every kernel of a module; code in ``seen``, which grows, is not compiled again."""
    known = set() if seen is None else seen
    for name, kernel in generated.kernels():
        code = code_of(kernel.source.text)
        if code in known:
            continue
        known.add(code)
        uses = generated.uses[name]
        for target in (TARGETS[n] for n in targets):
            blocks, used = compile_generated(kernel, target)
            yield GeneratedRow(name, uses, target, blocks, used, isinstance(kernel, ScanKernel))


def compile_generated(kernel: GeneratedKernel, target: Target) -> tuple[str, Resources]:
    """The blocks of a kernel for the example sizes, and what its binary takes."""
    if interpreted():
        raise BackendError("TRITON_INTERPRET=1 compiles nothing; unset it to compile kernels")
    launch = kernel.plan(_example, False, target.name.startswith("hip"))
    source = kernel.source
    signature: dict[str, str] = {}
    types = (*source.operands, *source.results)
    signature.update(_pointers(source.pointers, types))
    signature.update(dict.fromkeys(source.sizes, "i32"))
    signature.update(dict.fromkeys(launch.constants, "constexpr"))
    attributes = {(i,): _ALIGNED for i in range(len(source.pointers))}
    made = ASTSource(kernel.function, signature, dict(launch.constants), attributes)
    warps = max(1, launch.warps * 32 // target.triton.warp_size)
    blocks = [v for n, v in launch.constants.items() if n not in ("OFFSET", "DOT", "PRECISION")]
    return "x".join(map(str, blocks)), compile_source(made, target, warps, 1)


def _pointers(names: tuple[str, ...], types: tuple[TensorType, ...]) -> Mapping[str, str]:
    return {name: _POINTERS[type.dtype] for name, type in zip(names, types, strict=True)}


def _example(size: Size) -> int:
    return size if isinstance(size, int) else evaluate_size(size, EXAMPLE)
