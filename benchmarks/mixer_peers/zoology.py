"""Mixers of a checkout of HazyResearch/zoology, one by one; its model class needs a GPU.

They need einops, opt_einsum, pandas and scipy beside the checkout.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from torch import nn

__all__ = ["add_checkout", "mixer"]


def add_checkout(checkout: Path | None) -> bool:
    """Whether there is one, which is put on the path then."""
    if checkout is None or not (checkout / "zoology" / "mixers").is_dir():
        print(f"no checkout of zoology at {checkout}: its rows are missing (--zoology PATH)")
        return False
    sys.path.append(str(checkout))
    sys.modules.setdefault("wandb", _silent_log())
    return True


def mixer(place: str, name: str, options: dict[str, Any]) -> nn.Module:
    """A class of one of its modules."""
    found = importlib.import_module(f"zoology.mixers.{place}")
    made: nn.Module = getattr(found, name)(**options)
    return made


def _silent_log() -> ModuleType:
    """What its selective mixers log to at every hundredth step: here it is never one of those."""
    module = ModuleType("wandb")
    module.run = SimpleNamespace(step=1)  # type: ignore[attr-defined]
    return module
