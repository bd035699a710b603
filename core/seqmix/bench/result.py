"""What was measured, as JSON: every turn is kept, everything else follows from it."""

from __future__ import annotations

import dataclasses
import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from seqmix.bench.ceiling import BYTES, FLOPS
from seqmix.errors import ConfigError
from seqmix.reading import UnreadableError, read_json
from seqmix.whole_file import write_whole

__all__ = ["Case", "Entry", "Result", "Row", "Settings", "read_result", "write_result"]

FORMAT = 1


@dataclass(frozen=True)
class Settings:
    """What was asked for; results of equal settings may stand in one file.

    ``tokens`` are read per turn of ``decode``, one by one. ``clock`` is ``wall``, or ``cpu`` for
    what the process computes: with one thread, the time of a machine that does nothing else.
    """

    model: str
    rope: str | None
    backends: list[str]
    peers: list[str]
    rounds: int
    tokens: int
    threads: int
    seed: int
    clock: str = "wall"


@dataclass
class Entry:
    """A contestant before its first case; ``reason`` says why it never came to one.

    ``base_mib`` is the process with its libraries, before anything was loaded.
    """

    name: str
    kind: str
    reason: str = ""
    load_seconds: float | None = None
    prepare_seconds: float | None = None
    prepare_peak_mib: float | None = None
    base_mib: float | None = None


@dataclass
class Row:
    """A contestant in a case: seconds of its turns, or the reason why there are none.

    ``difference`` is the largest of the logits' differences to those of the case's first row, to
    their largest. ``flops`` and ``bytes`` are what the case needs at least, per prompt or token.
    """

    contestant: str
    flops: int = 0
    bytes: int = 0
    seconds: list[float] = field(default_factory=list)
    peak_mib: float | None = None
    difference: float | None = None
    reason: str = ""


@dataclass
class Case:
    """A phase at a length: who did what, and what the machine could do in the same rounds.

    A turn is ``count`` tokens of a ``decode``, or one prompt.
    """

    phase: str
    length: int
    count: int
    products: list[float]
    reads: list[float]
    rows: list[Row]

    def median(self, row: Row) -> float:
        """Seconds per prompt, or per token that is decoded."""
        return statistics.median(row.seconds) / self.count

    def spread(self, row: Row) -> float:
        """The distance of the quartiles, in medians; NaN for a single turn."""
        if len(row.seconds) < 2:
            return float("nan")
        low, middle, high = statistics.quantiles(row.seconds, n=4, method="inclusive")
        return (high - low) / middle

    def tokens_per_second(self, row: Row) -> float:
        """Of the prompt, or decoded."""
        return (self.length if self.phase == "prefill" else 1) / self.median(row)

    @property
    def flop_rate(self) -> float:
        """Operations per second of a large product."""
        return FLOPS / statistics.median(self.products)

    @property
    def byte_rate(self) -> float:
        """Bytes per second that are read from memory."""
        return BYTES / statistics.median(self.reads)

    def of_flops(self, row: Row) -> float:
        """The share of the product's rate that the needed operations reach."""
        return row.flops / self.median(row) / self.flop_rate

    def of_bytes(self, row: Row) -> float:
        """The share of the memory's rate that the needed bytes reach."""
        return row.bytes / self.median(row) / self.byte_rate

    def share(self, row: Row) -> float:
        """The larger of the two: how much of what is possible."""
        return max(self.of_flops(row), self.of_bytes(row))


@dataclass
class Result:
    """A whole run. ``ceilings`` say who multiplied and how memory was read."""

    settings: Settings
    machine: dict[str, str]
    parameters: int
    ceilings: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)

    def case(self, phase: str, length: int) -> Case | None:
        """The case, if it was measured."""
        found = (c for c in self.cases if (c.phase, c.length) == (phase, length))
        return next(found, None)

    def of_phase(self, phase: str) -> list[Case]:
        """Its cases, by length."""
        found = (case for case in self.cases if case.phase == phase)
        return sorted(found, key=lambda case: case.length)


def write_result(result: Result, path: Path) -> None:
    """Write JSON, whole or not at all."""
    content = {"format": FORMAT, **dataclasses.asdict(result)}
    write_whole(path, json.dumps(content, indent=1) + "\n")


def read_result(path: Path) -> Result:
    """Read what :func:`write_result` wrote; ConfigError for anything else."""
    try:
        content = read_json(path)
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ValueError(f"not of format {FORMAT}")
        return TypeAdapter(Result).validate_python(content)
    except (UnreadableError, ValueError) as error:
        reason = str(error).replace("\n", " ")[:300]
        raise ConfigError(
            f"{path} holds no results of this command ({reason}); choose another file, or remove it"
        ) from error
