"""How a kernel is cut into programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Config"]


@dataclass(frozen=True)
class Config:
    """How a kernel is cut: tile sizes by name, warps of a program, stages of its pipeline.

    Warps are counted in 32 lanes: where they have 64, half as many run.
    """

    tiles: Mapping[str, int]
    warps: int = 4
    stages: int = 2

    def warps_of(self, lanes: int) -> int:
        """How many warps of so many lanes run one program."""
        return max(1, self.warps * 32 // lanes)
