"""How large a model would be, before any of it is made: a configuration may claim anything."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from seqmix.config import Kind, ModelConfig
from seqmix.errors import ConfigError

if sys.platform != "win32":
    import resource

__all__ = ["check_memory", "parameter_count"]

_BYTES = 4
"""Of a fresh weight: it is drawn in float32, whatever it becomes."""
_GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""Where Linux says how much memory a container may take."""


def check_memory(config: ModelConfig, build: Callable[[Kind], nn.Module]) -> None:
    """ConfigError where fresh weights on the CPU would not fit into the memory that there is.

    ``build`` makes a branch. On other devices, such as meta, nothing is checked.
    """
    if torch.get_default_device().type != "cpu":
        return
    count, most = parameter_count(config, build), _memory()
    if count * _BYTES > most:
        raise ConfigError(
            f"model '{config.name}' has {count:,} parameters, whose fresh weights take "
            f"{_shown(count * _BYTES)}; this process can have {_shown(most)}: make it smaller "
            "('seqmix info' counts without memory), or build it under torch.device('meta')"
        )


def parameter_count(config: ModelConfig, build: Callable[[Kind], nn.Module]) -> int:
    """The number of weights; of branches that are alike, one is built, without memory."""
    branches = config.branches()
    first = {repr(branch): branch for branch in branches}
    norm = config.width * (1 + (config.norm.kind == "layer" and config.norm.bias))
    tables = config.vocab_size * config.width * (1 if config.tie_embeddings else 2)
    total = tables + norm * (1 + len(branches))
    with torch.device("meta"), _Undrawn():
        for text, times in Counter(map(repr, branches)).items():
            total += times * sum(p.numel() for p in build(first[text]).parameters())
    return total


class _Undrawn(TorchFunctionMode):
    """Draws no normal numbers: on the meta device that loads a thousand modules of torch first."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The tensor as it is, or what ``func`` returns."""
        return args[0] if func is torch.Tensor.normal_ else func(*args, **(kwargs or {}))


def _memory() -> int:
    """Bytes that this process can have at most, as far as the system says."""
    known = [2**63]
    if sys.platform != "win32":
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        known += [soft] if soft != resource.RLIM_INFINITY else []
    with suppress(OSError, ValueError):  # There is no limit, or another system.
        known.append(int(_GROUP_LIMIT.read_text(encoding="utf-8")))
    return min(known)


def _shown(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
