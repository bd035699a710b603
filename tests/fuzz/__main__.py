"""One fuzz target for a while: ``python -m tests.fuzz --target gguf --minutes 10``.

What is found is kept under ``tests/fuzz/cases/NAME/``, one case of each fault, and the tests replay
it. The exit status is 1 when something was found.
"""

from __future__ import annotations

import argparse
import sys
import time

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tests.fuzz.edits import Edit, edits
from tests.fuzz.target import FindingError, Target, attempt, write_case
from tests.fuzz.targets import NAMES, target

__all__ = ["main"]

ROUND = 200
"""Examples of one run of Hypothesis; each has its own seed."""


def main(arguments: list[str] | None = None) -> int:
    """Run the target and print what came of it."""
    options = _options(arguments)
    chosen = target(options.target)
    if isinstance(chosen, str):
        print(f"{options.target}: {chosen}", file=sys.stderr)
        return 2
    run = _Run(chosen)
    run.until(time.monotonic() + 60 * options.minutes, options.seed)
    print(run.summary())
    return 1 if run.findings else 0


class _Run:
    """Counts of outcomes, and the first case of each fault."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.files = target.files()
        self.taken = self.refused = 0
        self.findings: dict[str, int] = {}
        self._started = time.process_time()

    def until(self, end: float, first: int) -> None:
        """Rounds of examples until a time."""
        number = first
        while time.monotonic() < end:
            self._round(end, number)
            number += 1

    def _round(self, end: float, number: int) -> None:
        @seed(number)
        @settings(
            max_examples=ROUND,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(changes=edits(4), choice=st.integers(0, 3))
        def one(changes: list[Edit], choice: int) -> None:
            if time.monotonic() < end:
                self._one(changes, choice)

        one()

    def _one(self, changes: list[Edit], choice: int) -> None:
        files = self.target.changed(self.files, changes, choice)
        try:
            taken = attempt(self.target, files)
        except FindingError as finding:
            self._keep(finding, changes, choice)
            return
        self.taken += taken
        self.refused += not taken

    def _keep(self, finding: FindingError, changes: list[Edit], choice: int) -> None:
        """Count a fault; the first time it is kept with as few edits as show it."""
        count = self.findings[finding.key] = self.findings.get(finding.key, 0) + 1
        if count > 1:
            return
        for few in [[change] for change in changes] + [changes]:
            files = self.target.changed(self.files, few, choice)
            if _fault(self.target, files) == finding.key:
                break
        path = write_case(self.target, files)
        print(f"{finding.key}\n{finding}\nkept in {path}\n", flush=True)

    def summary(self) -> str:
        """What came of it, in a few lines."""
        count = self.taken + self.refused + sum(self.findings.values())
        seconds = time.process_time() - self._started
        lines = [
            f"{self.target.name}: {count} examples in {seconds:.0f} s of CPU time: "
            f"{self.taken} taken, {self.refused} refused, {len(self.findings)} faults"
        ]
        return "\n".join([*lines, *(f"  {n} x {key}" for key, n in self.findings.items())])


def _fault(target: Target, files: dict) -> str:
    try:
        attempt(target, files)
    except FindingError as finding:
        return finding.key
    return ""


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", required=True, choices=NAMES)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
