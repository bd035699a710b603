"""Imported before anything of the tvm backend: without TVM the tests of a file are skipped."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm")
