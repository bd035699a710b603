"""Contestants in turn: backends and other implementations of one model, beside their machine."""

from __future__ import annotations

from seqmix.bench.contestant import Contestant

__all__ = ["Contestant"]
