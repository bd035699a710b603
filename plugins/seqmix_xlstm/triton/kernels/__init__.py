"""Triton functions of the mLSTM cell, each with its description."""

__all__: list[str] = []
