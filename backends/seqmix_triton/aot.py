"""``python -m seqmix_triton.aot``: compile every kernel without a GPU, and print what it takes.

With ``--model NAME|PATH`` (repeat for more) it is the kernels that are generated for these models,
each once however many layers and models share it.

Exit status 1 when a hot kernel spills registers without a listed reason, or when a program does
not fit a device.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seqmix_triton.binaries import TARGETS, Resources, Target, compile_case
from seqmix_triton.kernel import Case, Config, Kernel
from seqmix_triton.library import all_kernels

__all__ = ["Row", "main", "rows"]

_PARKED = 16
"""Bytes per lane that are no spill: ptxas parks a value or two, outside of loops, even while it has
registers to spare."""

_HEADER = (
    f"{'target':<11}{'kernel':<30}{'case':<24}{'dtype':<10}{'tiles':<22}"
    f"{'warps':>6}{'regs':>6}{'spill':>7}{'shared':>8}{'occup.':>8}"
)

_GENERATED_HEADER = (
    f"{'target':<11}{'generated kernel':<58}{'uses':>5}  {'blocks':<22}"
    f"{'warps':>6}{'regs':>6}{'spill':>7}{'shared':>8}{'occup.':>8}"
)


@dataclass(frozen=True)
class Row:
    """One compilation of a kernel at its default configuration."""

    kernel: Kernel
    case: Case
    target: Target
    config: Config
    used: Resources

    @property
    def reason(self) -> str:
        """Why it may spill; empty when nothing is said about it."""
        return self.kernel.spills.get(f"{self.target.name} {self.case.label}", "")

    @property
    def problem(self) -> str:
        """What is wrong with it; empty if nothing is."""
        if self.used.occupancy(self.target) == 0:
            return "does not fit the device"
        if self.kernel.hot and self.used.spilled > _PARKED and not self.reason:
            return "spills registers without a reason"
        return ""

    def __str__(self) -> str:
        """A line of the table."""
        tiles = "x".join(str(size) for size in self.config.tiles.values())
        used = self.used
        line = (
            f"{self.target.name:<11}{self.kernel.name:<30}{self.case.label:<24}"
            f"{str(self.case.dtype).removeprefix('torch.'):<10}{tiles:<22}{used.warps:>6}"
            f"{used.registers:>6}{used.spilled:>7}{used.shared:>8}"
            f"{used.occupancy(self.target):>8.0%}"
        )
        notes = [note for note in (self.problem and f"FAILS: {self.problem}", self.reason) if note]
        return "  ".join([line, *notes])


def rows(targets: Sequence[str], kernels: Sequence[str] = ()) -> Iterator[Row]:
    """Compile the kernels whose name contains one of ``kernels`` (all by default)."""
    for kernel in all_kernels():
        if kernels and not any(part in kernel.name for part in kernels):
            continue
        for case in kernel.cases:
            config = kernel.choose(case.dtype, case.constants)
            for target in (TARGETS[name] for name in targets):
                used = compile_case(kernel, case, target, config)
                yield Row(kernel, case, target, config, used)


def _print_models(models: Sequence[str], targets: Sequence[str]) -> int:
    """Print the table of what is generated for models; the number of rows with a problem."""
    from seqmix_triton.codegen.ahead import generated_rows
    from seqmix_triton.codegen.of_model import generated_for

    print(_GENERATED_HEADER)
    failed, seen = 0, set[str]()
    for model in models:
        generated = generated_for(model)
        print(f"{model}: {sum(generated.uses.values())} launches per run of generated kernels")
        for row in generated_rows(generated, tuple(targets), seen):
            print(row, flush=True)
            failed += bool(row.problem)
        for loc, reason in generated.refused.items():
            print(f"scan at {loc} is no kernel: {reason}")
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 when a row has a problem."""
    parser = argparse.ArgumentParser(prog="python -m seqmix_triton.aot", description=__doc__)
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="default: all")
    parser.add_argument("--kernel", action="append", default=[], help="part of a kernel's name")
    parser.add_argument("--model", action="append", default=[], help="what a model is read from")
    options = parser.parse_args(arguments)
    targets = options.target or list(TARGETS)
    failed = _print_models(options.model, targets) if options.model else 0
    if not options.model:
        print(_HEADER)
        for row in rows(targets, options.kernel):
            print(row, flush=True)
            failed += bool(row.problem)
    if failed:
        print(f"{failed} compilations have a problem", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
