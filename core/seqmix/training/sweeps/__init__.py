"""Sweeps: many trainings, in processes or on Ray, that survive whatever stops them."""

__all__: list[str] = []
