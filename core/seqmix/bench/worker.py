"""The process of one contestant: it does what it is told, line by line, and looks at the clock.

Every contestant has a process of its own, so that memory is its alone, no thread of another
library spins beside it, and one that dies is a row with a reason. A line of standard input is a
command in JSON, the answer is a line on the original standard output; whatever libraries print goes
to standard error.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from seqmix.bench.turns import timed

__all__ = ["CLOCKS", "Worker", "main"]

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


class Worker:
    """What can be asked of the process: each public method is a command."""

    def __init__(self) -> None:
        """Nothing is loaded yet."""
        self._contestant: Any = None
        self._turn: Callable[[], Any] = lambda: None
        self._rewind: Callable[[], Any] = lambda: None
        self._works: dict[str, Callable[[], Any]] = {}
        self._vocabulary = 0
        self._clock = time.perf_counter

    def prepare(self, spec: dict[str, Any], source: str, rope: str | None, threads: int) -> Any:
        """Load and compile; seconds, and the peak of memory until here and before."""
        import torch

        from seqmix.bench.memory import give_back, peak
        from seqmix.bench.spec import Spec, make
        from seqmix.cli.loading import load_checkpoint, load_model

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        base = peak()
        chosen = Spec(**spec)
        started = time.perf_counter()
        checkpoint = load_checkpoint(source, rope)
        subject: Any = checkpoint if chosen.kind == "peer" else load_model(checkpoint)
        loaded = time.perf_counter()
        self._contestant = make(chosen, subject, threads)
        ended = time.perf_counter()
        found = {
            "load_seconds": loaded - started,
            "prepare_seconds": ended - loaded,
            "prepare_peak_mib": peak(),
            "base_mib": base,
        }
        del subject, checkpoint
        give_back()
        return found

    def case(self, phase: str, length: int, tokens: int, seed: int) -> Any:
        """Get ready for a phase at a length; the logits after it, as bytes of float32."""
        import torch

        from seqmix.bench.memory import forget_peak, give_back

        generator = torch.Generator().manual_seed(seed)
        size = (1, length + tokens)
        ids = torch.randint(0, self._vocabulary, size, generator=generator)
        prompt, more = ids[:, :length], ids[:, length:]
        give_back()
        forget_peak()
        logits = self._contestant.read(prompt)
        if phase == "prefill":
            self._turn, self._rewind = lambda: self._contestant.read(prompt), lambda: None
        else:
            self._turn, self._rewind = lambda: self._steps(more), self._contestant.rewind
            self._rewind()
            logits = self._turn()
        content = logits[0].to(torch.float32).contiguous().numpy().tobytes()
        return base64.b64encode(content).decode()

    def settle(self, vocabulary: int, clock: str) -> None:
        """Draw tokens below ``vocabulary``, and look at this clock, from now on."""
        self._vocabulary = vocabulary
        self._clock = CLOCKS[clock]

    def turn(self) -> float:
        """Do once what the case is about; its seconds."""
        self._rewind()
        return timed(self._turn, self._clock)()

    def peak(self) -> float:
        """The most memory since the case began, in MiB."""
        from seqmix.bench.memory import peak

        return peak()

    def ceiling(self, backends: list[tuple[str, dict[str, Any]]], threads: int) -> list[str]:
        """Get ready for products and reads; who does them here."""
        import torch

        from seqmix.bench.ceiling import products, reads

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        (multiplier, self._works["products"]), (reader, self._works["reads"]) = (
            products(backends),
            reads(),
        )
        return [multiplier, reader]

    def work(self, name: str) -> float:
        """Multiply or read once; its seconds."""
        return timed(self._works[name], self._clock)()

    def _steps(self, ids: Any) -> Any:
        logits = None
        for t in range(ids.shape[1]):
            logits = self._contestant.step(ids[:, t : t + 1])
        return logits


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        _answer(answers, _done(worker, json.loads(line)))


def _done(worker: Worker, command: dict[str, Any]) -> dict[str, Any]:
    """What came of a command; whatever was raised is a reason for a row."""
    name = command.pop("do")
    try:
        return {"value": getattr(worker, name)(**command)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _answer(answers: TextIO, content: dict[str, Any]) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
