"""Torch-facing functions of the kernels, with the signatures of the core's own."""

from __future__ import annotations

__all__: list[str] = []
