"""Readers of checkpoints that other projects write: Hugging Face directories and GGUF files."""

from __future__ import annotations

__all__: list[str] = []
