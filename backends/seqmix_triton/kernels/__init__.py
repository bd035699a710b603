"""The kernels, each with the description that launcher, compiler and tests use."""

from __future__ import annotations

__all__: list[str] = []
