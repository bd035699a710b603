"""IR to ONNX to ONNX Runtime."""

from __future__ import annotations

__all__: list[str] = []
