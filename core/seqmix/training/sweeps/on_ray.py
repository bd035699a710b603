"""The runs of a sweep as tasks of a Ray cluster, one that is there or one on this machine.

Every node must see the sweep's folder under the same path, and have the same packages.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from typing import Any

from seqmix.errors import ConfigError
from seqmix.training.sweeps.job import Job, perform
from seqmix.training.sweeps.pool import Outcome, Prepare, Told

__all__ = ["OnRay"]

_prepared: set[str] = set()

INSTALL = 'a sweep on Ray needs Ray; pip install "seqmix[ray]"'


class OnRay:
    """A task per run, which takes ``threads`` CPUs and a share of a GPU where there are any."""

    def __init__(
        self,
        threads: int,
        address: str | None = None,
        workers: int | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        """``address`` is that of a cluster; None uses the one of ``RAY_ADDRESS``, or starts one.

        One that is started has CPUs for ``workers`` runs at a time, by default those of the
        machine. ConfigError where Ray is not installed.
        """
        self.threads = threads
        self.address = address
        self.workers = workers
        self.prepare = prepare
        self._ray = _imported()

    def run(self, jobs: Sequence[Job], told: Told) -> Generator[Outcome]:
        """Outcomes as they come; steps are not told. Tasks that are left are stopped at the end."""
        ray = self._ray
        started = not ray.is_initialized()
        if started:
            self._connect()
        gpus = min(1.0, float(ray.cluster_resources().get("GPU", 0)))
        # A worker that dies is no reason to try at once again: memory may have run out.
        remote = ray.remote(num_cpus=self.threads, num_gpus=gpus, max_retries=0)(_perform)
        left: dict[Any, int] = {}
        try:
            for number, job in enumerate(jobs):
                left[remote.remote(job, self.threads, self.prepare)] = number
            while left:
                for task in ray.wait(list(left), num_returns=1)[0]:
                    yield Outcome(left.pop(task), self._result(task))
        finally:
            for task in left:
                ray.cancel(task, force=True)
            if started:
                ray.shutdown()

    def _connect(self) -> None:
        """Join a cluster, or start one without a dashboard."""
        quiet = {"log_to_driver": False, "logging_level": "warning"}
        if self.address is not None or _address_is_set():
            self._ray.init(address=self.address, **quiet)
            return
        cpus = None if self.workers is None else self.workers * self.threads
        self._ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)

    def _result(self, task: Any) -> str | None:
        try:
            error: str | None = self._ray.get(task)
        except self._ray.exceptions.RayError as broken:
            first = str(broken).strip().splitlines()[0]
            return f"{type(broken).__name__}: {first}"
        return error


def _perform(job: Job, threads: int, prepare: Prepare | None) -> str | None:
    """What runs on a node."""
    import torch

    torch.set_num_threads(threads)
    if prepare is not None:
        _prepare_once(prepare)
    return perform(job)


def _prepare_once(prepare: Prepare) -> None:
    """Ray gives a process several runs, and a function anew with each of them."""
    name = f"{prepare.__module__}.{prepare.__qualname__}"
    if name not in _prepared:
        prepare()
        _prepared.add(name)


def _imported() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError(INSTALL) from error
    return ray


def _address_is_set() -> bool:
    return bool(os.environ.get("RAY_ADDRESS"))
