"""A fuzz target: valid files, what loads them, and the bounds within which it must end.

The only outcomes that are allowed are success and an error of ours, in little time and memory.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import resource
import shutil
import signal
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.edits import Edit, Files, Link, edited

from seqmix.errors import IRError, SeqmixError

__all__ = ["CASES", "FindingError", "Target", "attempt", "read_case", "write_case"]

CASES = Path(__file__).parent / "cases"
SECONDS = 5.0
"""Of CPU time for one example."""
PATIENCE = 600
"""Seconds until a loader that waits for something, such as a pipe, is given up."""
ROOM = 1 << 30
"""Bytes of address space that loading a file of a few kilobytes may take."""


def _as_it_is(files: Files, choice: int) -> Files:
    return files


@dataclass(frozen=True)
class Target:
    """``make`` writes valid files; ``load`` reads a folder of them, as deeply as a user would.

    ``finish`` sees the edited files and a number: it may put right what would be refused at once,
    such as a checksum.
    """

    name: str
    make: Callable[[Path], None]
    load: Callable[[Path], Any]
    finish: Callable[[Files, int], Files] = _as_it_is

    def files(self) -> Files:
        """The valid files by name; they are loaded once, for imports are not to be measured."""
        with _folder() as folder:
            self.make(folder)
            made: Files = {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}
        with _folder() as folder, suppress(SeqmixError, IRError):
            _write(folder, made)
            self.load(folder)
        return made

    def changed(self, files: Files, changes: list[Edit], choice: int) -> Files:
        """The files after the edits."""
        return self.finish(edited(files, changes), choice)


class FindingError(Exception):
    """An outcome that is not allowed; ``key`` is the same for the same fault."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


def attempt(target: Target, files: Files) -> bool:
    """Load files; whether they were taken. FindingError when the outcome is not allowed."""
    with _folder() as folder:
        _write(folder, files)
        started = time.process_time()
        try:
            with warnings.catch_warnings(), _bounded():
                warnings.simplefilter("ignore")
                target.load(folder)
            taken = True
        except (SeqmixError, IRError) as error:
            taken = not str(error)  # An error without a word helps nobody.
            if taken:
                raise FindingError(
                    f"{target.name}: an empty message", traceback.format_exc()
                ) from error
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            raise FindingError(_key(target, error), traceback.format_exc()) from error
        seconds = time.process_time() - started
    if seconds > SECONDS:
        raise FindingError(f"{target.name}: slow", f"took {seconds:.1f} s of CPU time")
    return taken


def write_case(target: Target, files: Files, folder: Path = CASES) -> Path:
    """Keep files that led to a finding."""
    content = {
        name: {"link": held.to} if isinstance(held, Link) else base64.b64encode(held).decode()
        for name, held in files.items()
    }
    text = json.dumps(content, indent=1) + "\n"
    path = folder / target.name / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def read_case(path: Path) -> Files:
    """What :func:`write_case` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: Link(held["link"]) if isinstance(held, dict) else base64.b64decode(held)
        for name, held in content.items()
    }


def _key(target: Target, error: BaseException) -> str:
    """Where an error came from: its class, and the innermost line of ours."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "seqmix" in f.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else "elsewhere"
    return f"{target.name}: {type(error).__name__} in {place}"


def _write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        path = folder / name
        if not isinstance(content, Link):
            path.write_bytes(content)
        elif content.to == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(content.to)


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        inside = folder / "files"
        inside.mkdir()
        yield inside
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _bounded() -> Iterator[None]:
    """Little address space, and an alarm of CPU time where signals can be had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    most = pages * resource.getpagesize() + ROOM
    alarm = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGVTALRM, signal.SIGALRM) if alarm else ()
    before = [signal.signal(number, _too_long) for number in signals]
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        if alarm:
            signal.setitimer(signal.ITIMER_VIRTUAL, 2 * SECONDS)
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        if alarm:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def _too_long(number: int, frame: Any) -> None:
    raise TimeoutError(f"no end after {2 * SECONDS} s of CPU time or {PATIENCE} s in all")
