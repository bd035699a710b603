"""The conformance kit: one call proves that a mixer keeps its laws and means the same everywhere.

from seqmix.testing import check_mixer

def test_my_mixer():
    check_mixer("my_mixer").raise_for_failures()

def test_my_op():
    check_op("my_op").raise_for_failures()
"""

from __future__ import annotations

from seqmix.testing.everything import check_all
from seqmix.testing.mixers import check_mixer
from seqmix.testing.models import check_model
from seqmix.testing.ops import check_op
from seqmix.testing.positions import check_position
from seqmix.testing.report import CheckReport, Overview, Row
from seqmix.testing.tolerances import TOLERANCES

__all__ = [
    "TOLERANCES",
    "CheckReport",
    "Overview",
    "Row",
    "check_all",
    "check_mixer",
    "check_model",
    "check_op",
    "check_position",
]
