"""A captured and a legalized module side by side, as one HTML file that needs nothing else."""

from __future__ import annotations

from seqmix.page.lowering import lower_as_far
from seqmix.page.render import render
from seqmix.page.summary import Subject

__all__ = ["Subject", "lower_as_far", "render"]
