"""Watch which questions about sizes torch.export answers for good, and who asked them.

torch.export traces one example. Where somebody asks "is S equal to 1?", the answer of the example
is kept. torch's own kernels ask such questions to choose strides, which mean nothing to the IR; a
model that asks has a branch that is lost.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx.experimental._config

from seqmix.capture.locate import source_of

__all__ = ["Guard", "Guards", "watched_guards"]

_CONFIG: Any = torch.fx.experimental._config
_LOGGING = os.path.dirname(logging.__file__) + os.sep
_CAPTURE = os.path.dirname(__file__) + os.sep
_LOGGER = "torch.fx.experimental.symbolic_shapes"
_TORCH = os.path.dirname(torch.__file__) + os.sep
_SYMBOL = re.compile(r"\bs\d+\b")
# What stands between a question and its log line: it asks on behalf of its caller.
_MESSENGERS = (
    _TORCH + "__init__.py",
    _TORCH + os.path.join("fx", "experimental") + os.sep,
    _TORCH + os.path.join("utils", "_stats.py"),
    _TORCH + os.path.join("_logging") + os.sep,
)


@dataclass(frozen=True)
class Guard:
    """A question that was answered for good: its answer, its place, and whether a model asked."""

    answer: str
    where: str
    by_model: bool

    def __str__(self) -> str:
        return f"{self.answer} was decided at {self.where or 'an unknown place'}"


class Guards(list[Guard]):
    """The guards of one export, and what torch's names of sizes (``s77``) stand for."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        super().__init__()
        self.sizes: dict[str, str] = {}

    def spelled(self, text: str) -> str:
        """``text`` with sizes as a user writes them: ``x.shape[1]``."""
        return _SYMBOL.sub(lambda found: self.sizes.get(found[0], found[0]), text)


@contextmanager
def watched_guards() -> Iterator[Guards]:
    """Collect the guards of everything that is exported inside.

    Sizes are treated as unknown even where 0 and 1 are special to torch, so that slices such as
    ``x[:, 1:]`` need no guard.
    """
    guards = Guards()
    logger = logging.getLogger(_LOGGER)
    before = (logger.level, logger.propagate, logger.handlers)
    if not logger.isEnabledFor(logging.INFO):
        # Nobody reads this log (TORCH_LOGS would have enabled it): it is for us alone.
        logger.propagate, logger.handlers = False, []
        logger.setLevel(logging.INFO)
    logger.handlers = [*logger.handlers, _Collector(guards)]
    try:
        with _CONFIG.patch(backed_size_oblivious=True):
            yield guards
    finally:
        logger.setLevel(before[0])
        logger.propagate, logger.handlers = before[1:]


class _Collector(logging.Handler):
    """Reads torch's log of guards, from inside the question: the asker is on the stack."""

    def __init__(self, guards: Guards) -> None:
        super().__init__(logging.INFO)
        self._guards = guards

    def emit(self, record: logging.LogRecord) -> None:
        arguments: Any = record.args
        if not isinstance(arguments, tuple):
            return
        if str(record.msg).startswith("create_symbol %s = %s for %s"):
            self._guards.sizes[str(arguments[0])] = _axis(str(arguments[2]))
        if "[guard added]" not in str(record.msg):
            return
        if "suppressed" in str(arguments[0]):
            return
        frames = _stack()
        asker = next((f for f, _ in reversed(frames) if not f.startswith(_MESSENGERS)), _TORCH)
        by_model = not asker.startswith((_TORCH, _CAPTURE, "<"))
        answer = self._guards.spelled(_comparison(str(arguments[1])))
        self._guards.append(Guard(answer, source_of(frames), by_model))


def _axis(source: str) -> str:
    """``args[0].shape[1]`` for ``L['args'][0].size()[1]``, torch's name of an axis."""
    return re.sub(r"^L\['(\w+)'\]", r"\1", source).replace(".size()", ".shape")


def _comparison(answer: str) -> str:
    """``a == b`` for sympy's ``Eq(a, b)``, and likewise for ``Ne``."""
    found = re.fullmatch(r"(Eq|Ne)\((.*), ([^,]*)\)", answer)
    if found is None:
        return answer
    return f"{found[2]} {'==' if found[1] == 'Eq' else '!='} {found[3]}"


def _stack() -> list[tuple[str, int]]:
    """File and line of the frames up to the log call, outermost first."""
    frames = []
    frame = sys._getframe(2)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_LOGGING):
            frames.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return frames[::-1]
