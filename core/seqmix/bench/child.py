"""A contestant's process, as the one that measures sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from tempfile import TemporaryFile
from typing import Any, Self

from seqmix.errors import SeqmixError

__all__ = ["Child", "ChildError"]

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS")
_GRACE = 5


class ChildError(SeqmixError):
    """What a contestant answered instead of a result, or how it died; the text is the reason."""


class Child:
    """Starts the process; :meth:`ask` has it do something."""

    def __init__(self, threads: int) -> None:
        """``threads`` is what libraries read from the environment when they are loaded."""
        env = {**os.environ, **dict.fromkeys(_THREADS, str(threads)), "OMP_WAIT_POLICY": "passive"}
        self._printed = TemporaryFile()  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "seqmix.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env=env,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End the process, whatever it is doing."""
        self._process.terminate()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._printed):
            if pipe is not None:
                _close(pipe)

    @property
    def alive(self) -> bool:
        """Whether it can be asked anything."""
        return self._process.poll() is None

    def ask(self, command: str, **arguments: Any) -> Any:
        """The value of a command of :class:`~seqmix.bench.worker.Worker`; ChildError for none."""
        asked, answers = self._process.stdin, self._process.stdout
        if asked is None or answers is None:
            raise ChildError("it has no pipes")
        try:
            asked.write(json.dumps({"do": command, **arguments}) + "\n")
            asked.flush()
            line = answers.readline()
        except OSError:
            line = ""
        if not line:
            raise ChildError(self._end())
        content = json.loads(line)
        if "error" in content:
            raise ChildError(content["error"])
        return content["value"]

    def _end(self) -> str:
        """How the process ended, with the last that it printed."""
        code = self._process.wait()
        self._printed.seek(0)
        lines = self._printed.read().decode(errors="replace").strip().splitlines()
        how = f"its process ended by signal {-code}" if code < 0 else f"its process ended ({code})"
        return f"{how}: {lines[-1]}" if lines else how


def _close(pipe: Any) -> None:
    try:
        pipe.close()
    except OSError:  # What was still to be written has no reader any more.
        return
