"""check_all: every mixer and every op that is registered, plugins included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from seqmix import registry
from seqmix.errors import IRError, PluginError
from seqmix.testing.mixers import check_mixer
from seqmix.testing.ops import check_op
from seqmix.testing.report import CheckReport, Overview, Row

__all__ = ["check_all"]


def check_all(
    profile: str = "quick",
    backends: Sequence[str] | None = None,
    watch: Callable[[str], object] | None = None,
) -> Overview:
    """Check everything; ``watch(subject)`` is told before each one.

    A plugin that cannot be loaded is a failure of its own. Raises as :func:`check_op` does for an
    unknown profile or a wanted backend that is missing.
    """
    overview = Overview()
    for subject, check in _subjects(profile, backends):
        if watch is not None:
            watch(subject)
        overview.reports.append(_checked(subject, check))
    return overview


def _subjects(
    profile: str, backends: Sequence[str] | None
) -> Iterator[tuple[str, Callable[[], CheckReport]]]:
    """Mixers first: importing them binds the ops of their plugins to torch."""
    for name in registry.names("mixers"):
        yield f"mixer '{name}'", partial(check_mixer, name, profile=profile, backends=backends)
    for name in registry.op_table().names():
        yield f"op '{name}'", partial(check_op, name, profile, backends)


def _checked(subject: str, check: Callable[[], CheckReport]) -> CheckReport:
    try:
        return check()
    except (PluginError, IRError) as error:
        return CheckReport(subject, [Row("loads", "", 1.0, 0.0, str(error))])
