"""Eight threads with one executable in Triton's interpreter, which is made for one of them."""

from __future__ import annotations

import os

import pytest

os.environ["TRITON_INTERPRET"] = "1"  # Before anything of Triton is imported.
pytest.importorskip("triton")

from tests.core import tiny
from tests.core.in_threads import as_if_alone


@pytest.mark.full
def test_one_executable() -> None:
    as_if_alone("triton", [tiny.ATTENTION], tokens=2, rounds=1)
