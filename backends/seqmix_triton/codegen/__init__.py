"""Triton source for groups of ops and for loops along a sequence, written from the graph."""

from __future__ import annotations

__all__: list[str] = []
