"""Graphs of the IR as Python functions of torch calls, and loops that train by their adjoint."""

from __future__ import annotations

__all__: list[str] = []
