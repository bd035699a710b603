"""Rotary position encodings: RoPE and its scalings."""

from __future__ import annotations

__all__: list[str] = []
