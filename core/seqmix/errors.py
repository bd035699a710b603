"""One exception class per layer; every message says where, expected, found, and what to do."""

from __future__ import annotations

from seqmix_ir.errors import IRError, did_you_mean

__all__ = [
    "BackendError",
    "CaptureError",
    "CheckpointError",
    "ConfigError",
    "IRError",
    "PluginError",
    "SeqmixError",
    "WriteError",
    "did_you_mean",
]


class SeqmixError(Exception):
    """Base of the errors raised by seqmix itself (:class:`IRError` comes from ``seqmix_ir``)."""


class ConfigError(SeqmixError):
    """A configuration or an argument that does not fit."""


class PluginError(SeqmixError):
    """A plugin that is missing, broken, blocked, or at odds with another."""


class CaptureError(SeqmixError):
    """A torch program that has no counterpart in the IR."""


class BackendError(SeqmixError):
    """A backend that is not available here, or cannot run what it was given."""


class CheckpointError(SeqmixError):
    """A checkpoint that is wrong, truncated or foreign; names file, tensor, expected and found."""


class WriteError(SeqmixError, OSError):
    """A file or folder that cannot be written: which one, and what the system says against it."""

    def __init__(self, message: str, number: int | None = None) -> None:
        """``number`` is the system's (:mod:`errno`), where it has one."""
        super().__init__(message)
        self.errno = number
