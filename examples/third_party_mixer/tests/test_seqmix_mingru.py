"""The whole test suite: seqmix.testing knows what a mixer, an encoding and an op must keep."""

from __future__ import annotations

from seqmix.testing import check_mixer, check_op, check_position


def test_mixer():
    check_mixer("mingru").raise_for_failures()


def test_position():
    check_position("kerple").raise_for_failures()


def test_op():
    check_op("mingru.positive").raise_for_failures()
