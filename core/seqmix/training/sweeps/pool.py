"""Where the runs of a sweep are worked on: in this process, or in several others.

A worker is a fresh process that is kept for all runs it gets. One that dies takes its run with it
and nothing else; another takes its place. Workers leave interrupts to the process that started
them, and end with it, however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Protocol, TypeAlias

from seqmix.training.sweeps.job import Job, Watch, perform

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

__all__ = ["Executor", "Here", "Outcome", "Prepare", "Processes", "Told"]

Prepare: TypeAlias = Callable[[], object]
"""Called in a worker before its first run; it registers what no installed plugin has."""
Told: TypeAlias = Callable[[int, int, int], None]
"""Hears of the progress of a run: its number, steps made, steps planned."""

CLOSING = 10.0
"""Seconds that a worker has to end by itself once there is nothing left to do."""
SILENCE = 0.2
"""Seconds between two reports of a run."""


@dataclass(frozen=True)
class Outcome:
    """The end of a run: its number, and what went wrong, None if nothing did."""

    number: int
    error: str | None


class Executor(Protocol):
    """Does jobs in any order and tells of each as it ends; stops all when it is closed early."""

    def run(self, jobs: Sequence[Job], told: Told) -> Generator[Outcome]:
        """Outcomes as they come."""
        ...


class Here:
    """One run after the other in this process."""

    def run(self, jobs: Sequence[Job], told: Told) -> Generator[Outcome]:
        """Outcomes in the order of the jobs."""
        for number, job in enumerate(jobs):
            yield Outcome(number, perform(job, _watch(number, told)))


class Processes:
    """Several at a time, each in a process with ``threads`` threads.

    With GPUs a worker sees one of them, the same for several workers when there are more of these.
    """

    def __init__(self, workers: int, threads: int, prepare: Prepare | None = None) -> None:
        """``prepare`` must be a function of a module, as must all that a process is started on."""
        self.workers = workers
        self.threads = threads
        self.prepare = prepare

    def run(self, jobs: Sequence[Job], told: Told) -> Generator[Outcome]:
        """Outcomes as they come; no worker is left when this ends or is closed."""
        waiting = list(enumerate(jobs))[::-1]
        places = range(min(self.workers, len(jobs)))
        crew = [Worker(place, self.threads, self.prepare) for place in places]
        try:
            for worker in crew:
                worker.give(*waiting.pop())
            while busy := [worker for worker in crew if worker.number is not None]:
                yield from _heard(busy, told)
                crew = [self._next(worker, waiting) for worker in crew]
            for worker in crew:
                worker.close()
        finally:
            for worker in crew:
                worker.kill()

    def _next(self, worker: Worker, waiting: list[tuple[int, Job]]) -> Worker:
        """The worker, or one in its place if it died, with something to do if there is any."""
        if worker.number is not None or not waiting:
            return worker
        if not worker.process.is_alive():
            worker.kill()
            worker = Worker(worker.place, self.threads, self.prepare)
        worker.give(*waiting.pop())
        return worker


class Worker:
    """A process, and the number of the run that it has at the moment."""

    def __init__(self, place: int, threads: int, prepare: Prepare | None) -> None:
        """Start it; it ends with this process."""
        self.place = place
        self.number: int | None = None
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_work, args=(theirs, place, threads, prepare), daemon=True
        )
        self.process.start()
        theirs.close()

    def give(self, number: int, job: Job) -> None:
        """Hand over a run; a worker that is dead already will be found so."""
        self.number = number
        with suppress(OSError):
            self.pipe.send((number, job))

    def hear(self, told: Told) -> Outcome | None:
        """One message, or the news that the worker is dead; what it means for the run."""
        number = self.number if self.number is not None else -1
        try:
            kind, *content = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            self.number = None
            return Outcome(number, _how_it_died(self.process.exitcode))
        if kind == "step":
            told(number, *content)
            return None
        self.number = None
        return Outcome(number, *content)

    def close(self) -> None:
        """Let it end by itself."""
        with suppress(OSError):
            self.pipe.send(None)
        self.process.join(CLOSING)

    def kill(self) -> None:
        """End it at once; what it was writing is a file that nobody reads."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.pipe.close()


def _heard(busy: Sequence[Worker], told: Told) -> Iterator[Outcome]:
    """What the workers that have something to say bring to an end."""
    ready = wait([worker.pipe for worker in busy])
    for worker in busy:
        if worker.pipe in ready and (outcome := worker.hear(told)) is not None:
            yield outcome


def _work(pipe: Connection, place: int, threads: int, prepare: Prepare | None) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)
    _take_gpu(place, torch.cuda.device_count())
    if prepare is not None:
        prepare()
    while (given := pipe.recv()) is not None:
        number, job = given
        error = perform(
            job, _watch(number, lambda _, step, steps: pipe.send(("step", step, steps)))
        )
        pipe.send(("end", error))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _take_gpu(place: int, count: int) -> None:
    """Make one GPU the only one that this process sees, before CUDA is asked for anything."""
    if count > 1:
        given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = given.split(",") if given else [str(number) for number in range(count)]
        os.environ["CUDA_VISIBLE_DEVICES"] = names[place % len(names)]


def _watch(number: int, told: Told) -> Watch:
    """Tells of a run now and then, and of its end."""
    last = 0.0

    def watch(step: int, steps: int) -> None:
        nonlocal last
        now = time.monotonic()
        if step >= steps or now - last >= SILENCE:
            told(number, step, steps)
            last = now

    return watch


def _how_it_died(code: int | None) -> str:
    """What an exit code says; the traceback, if any, is on standard error."""
    if code is not None and code < 0:
        with suppress(ValueError):
            name = signal.Signals(-code).name
            return f"the worker was ended by {name} (memory may have run out)"
    return f"the worker ended with status {code}"
