"""What to say when torch.export fails: the error, where it happened, and what to do."""

from __future__ import annotations

import re
import traceback

from seqmix.capture.guards import Guards
from seqmix.capture.locate import source_of
from seqmix.errors import CaptureError, SeqmixError
from seqmix_ir.errors import IRError

__all__ = ["explain", "refuse_branches"]

_VIOLATED = re.compile(r"Constraints violated \((?P<names>[^)]*)\)")
_ADVICE = "do not compare sizes, loop over them, or use them as Python numbers in forward"
_VALUES = ("data-dependent", "DataDependent", "_local_scalar_dense", "unbacked")


def explain(name: str, error: Exception, guards: Guards) -> Exception:
    """The error to raise in place of torch's; seqmix's own errors keep their text."""
    own = _own_error(error)
    if own is not None:
        return CaptureError(f"{name}: {guards.spelled(str(own))}")
    text = str(error)
    if (violated := _VIOLATED.search(text)) is not None:
        sizes = ", ".join(re.findall(r"\w+", violated["names"]))
        asked = [str(g) for g in guards if g.by_model] or [str(g) for g in guards]
        reasons = "; ".join(dict.fromkeys(asked)) or _reasons(text, guards)
        return CaptureError(
            f"{name}: the module works only for some values of {sizes}: {reasons}; {_ADVICE}"
        )
    where = _where(error)
    if any(mark in text or mark in type(error).__name__ for mark in _VALUES):
        return CaptureError(
            f"{name}: forward depends on the values of a tensor in Python{where}: "
            f"{_reason(text, guards)}; use torch.where, masks and gathers instead of 'if' and "
            ".item()"
        )
    return CaptureError(
        f"{name}: torch.export failed{where}: {type(error).__name__}: {_reason(text, guards)}; "
        "call the module itself on such arguments: what fails there is no matter of capture"
    )


def refuse_branches(name: str, guards: Guards) -> None:
    """CaptureError when the module itself asked about a size, and torch kept the answer."""
    asked = [str(guard) for guard in guards if guard.by_model]
    if asked:
        raise CaptureError(
            f"{name}: the module works only for some sizes: {'; '.join(dict.fromkeys(asked))}; "
            f"{_ADVICE}"
        )


def _own_error(error: BaseException | None) -> BaseException | None:
    """An error of ours on the chain of causes."""
    while error is not None:
        if isinstance(error, SeqmixError | IRError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _where(error: Exception) -> str:
    """`` at file.py:12``: the innermost frame of the user's code, where there is one."""
    frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]
    # The frames of the capture itself come first; the module's follow them.
    found = source_of(frames)
    return f" at {found}" if found else ""


def _reasons(text: str, guards: Guards) -> str:
    lines = [line.strip(" -") for line in text.splitlines()]
    reasons = [line for line in lines if "alues of" in line or "inferred to be" in line]
    return "; ".join(dict.fromkeys(reasons)) or _reason(text, guards)


def _reason(text: str, guards: Guards) -> str:
    """The first line of a message, with what it announces, in the user's words for sizes."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
    first = f"{lines[0]} {lines[1]}" if lines[0].endswith(":") and lines[1:] else lines[0]
    return guards.spelled(first.partition(" (unhinted")[0].rstrip("."))
