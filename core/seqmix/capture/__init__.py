"""Capture: a torch model as a module of the IR."""

from __future__ import annotations

from seqmix.capture.export import Axes
from seqmix.capture.function import Captured, capture_function
from seqmix.capture.model import capture, capture_model

__all__ = ["Axes", "Captured", "capture", "capture_function", "capture_model"]
