"""Where a node of an exported program came from: module path, file and line."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from seqmix_ir.types import Loc

__all__ = ["locate", "source_of"]

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_TORCH = os.path.dirname(torch.__file__) + os.sep
_CORE = str(Path(__file__).resolve().parent.parent) + os.sep
# Frames of the functions that wrap ops say nothing: the user's line is their caller.
_PLUMBING = (
    _TORCH,
    "<",
    *(_CORE + part for part in ("op.py", "scan.py", "ops" + os.sep, "capture" + os.sep)),
)


def locate(node: Any, prefix: str = "", around: str = "") -> Loc:
    """``path (file.py:line)``: innermost module, and the last frame that is not plumbing.

    ``prefix`` is taken off the module path (the name of a wrapper's attribute). Nodes of a loop's
    body say nothing of their module; ``around`` is the path of the loop.
    """
    path = _module_path(node, prefix) or around
    source = source_of(_FRAME.findall(node.meta.get("stack_trace") or ""))
    if not path and not source:
        return Loc(str(node.name))
    return Loc(f"{path or 'root'} ({source})" if source else path)


def source_of(frames: Sequence[tuple[str, Any]]) -> str:
    """``file.py:line`` of the innermost frame of somebody's model, or nothing."""
    for file, line in reversed(frames):
        if not file.startswith(_PLUMBING):
            return f"{os.path.basename(file)}:{line}"
    return ""


def _module_path(node: Any, prefix: str) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    path = path.removeprefix("L['self'].").removeprefix("L['self']")
    return "" if path == prefix.rstrip(".") else path.removeprefix(prefix)
