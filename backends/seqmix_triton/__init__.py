"""Triton on CUDA and HIP devices: the ops of the core as kernels, and a backend of them."""

from __future__ import annotations

import os

__all__: list[str] = []

# Triton 3.9 warns when nobody decides. Fused multiply-adds are what sums of products want.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
