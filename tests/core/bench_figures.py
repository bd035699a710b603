"""Results of ``seqmix bench`` that nobody measured: one contestant of two fails, at two lengths."""

from __future__ import annotations

from seqmix.bench.result import Case, Entry, Result, Row, Settings

HOSTILE = '</style><script>alert("1")</script>'


def figures() -> Result:
    """One contestant of two that fails, at two lengths."""
    cases = [
        Case(
            phase,
            length,
            count,
            [0.02, 0.02],
            [0.01, 0.01],
            [
                Row("one", 10**9, 10**8, [0.5 * count, 0.3 * count, 0.4 * count], 700.0, 0.0),
                Row(HOSTILE, reason=f"broke | {HOSTILE}"),
            ],
        )
        for length in (8, 32)
        for phase, count in (("decode", 4), ("prefill", 1))
    ]
    entries = [Entry("one", "backend", "", 1.0, 2.0, 900.0, 200.0), Entry(HOSTILE, "peer", "broke")]
    machine = {"processor": "some", "cores": "2"}
    given = Settings(f"m {HOSTILE}", None, ["one"], [HOSTILE], 3, 4, 1, 0)
    return Result(given, machine, 1234, ["torch", "sum"], entries, cases)
