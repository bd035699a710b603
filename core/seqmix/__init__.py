"""seqmix: sequence mixers written once in PyTorch; trained, decoded, exported and compiled.

Importing this package imports neither torch nor any backend: every name below is loaded when it
is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seqmix import capture as capture
    from seqmix import hooks as hooks
    from seqmix import ops as ops
    from seqmix import registry as registry
    from seqmix import testing as testing
    from seqmix.backend import Availability, Backend, Executable, Program
    from seqmix.checkpoint import Checkpoint, resolve
    from seqmix.compile import compile, load
    from seqmix.config import ModelConfig, Strict
    from seqmix.context import Context
    from seqmix.errors import (
        BackendError,
        CaptureError,
        CheckpointError,
        ConfigError,
        IRError,
        PluginError,
        SeqmixError,
    )
    from seqmix.generate import generate
    from seqmix.hooks import hookimpl
    from seqmix.mixer import SequenceMixer
    from seqmix.model import Model
    from seqmix.op import op
    from seqmix.ops.clip_gradient import clip_gradient
    from seqmix.position import PositionEncoding
    from seqmix.scan import scan
    from seqmix.state import State, StateSpec

__all__ = [
    "Availability",
    "Backend",
    "BackendError",
    "CaptureError",
    "Checkpoint",
    "CheckpointError",
    "ConfigError",
    "Context",
    "Executable",
    "IRError",
    "Model",
    "ModelConfig",
    "PluginError",
    "PositionEncoding",
    "Program",
    "SeqmixError",
    "SequenceMixer",
    "State",
    "StateSpec",
    "Strict",
    "__version__",
    "clip_gradient",
    "compile",
    "generate",
    "hookimpl",
    "load",
    "op",
    "resolve",
    "scan",
]

_HOMES = {
    "backend": ("Availability", "Backend", "Executable", "Program"),
    "checkpoint": ("Checkpoint", "resolve"),
    "compile": ("compile", "load"),
    "config": ("ModelConfig", "Strict"),
    "context": ("Context",),
    "errors": (
        "BackendError",
        "CaptureError",
        "CheckpointError",
        "ConfigError",
        "IRError",
        "PluginError",
        "SeqmixError",
    ),
    "generate": ("generate",),
    "hooks": ("hookimpl",),
    "mixer": ("SequenceMixer",),
    "model": ("Model",),
    "op": ("op",),
    "ops.clip_gradient": ("clip_gradient",),
    "position": ("PositionEncoding",),
    "scan": ("scan",),
    "state": ("State", "StateSpec"),
}
_MODULES = {name: module for module, exported in _HOMES.items() for name in exported}
_PACKAGES = ("capture", "hooks", "ops", "registry", "testing")


def __getattr__(name: str) -> Any:
    """Load a public name, or a part that is used by its own name, at its first use."""
    if name == "__version__":
        from importlib.metadata import version

        return version("seqmix")
    if name in _PACKAGES:
        return import_module(f"seqmix.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'seqmix' has no attribute '{name}'")
    value = getattr(import_module(f"seqmix.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """The package itself: importing ``seqmix.compile`` must not hide that function."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep a submodule from taking the place of the public name that it defines."""
        if not (isinstance(value, ModuleType) and name in _MODULES):
            super().__setattr__(name, value)


def __dir__() -> list[str]:
    """The public names."""
    return sorted({*globals(), *__all__, *_PACKAGES})


sys.modules[__name__].__class__ = _Package
