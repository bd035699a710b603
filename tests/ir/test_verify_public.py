"""The lazily loaded public names of the package, however much of it is imported before."""

from __future__ import annotations

import inspect
import pkgutil
import subprocess
import sys

import pytest

import seqmix_ir


def test_no_public_name_is_the_name_of_a_submodule() -> None:
    """Importing the submodule would put it in the place of what is loaded lazily."""
    submodules = {found.name for found in pkgutil.iter_modules(seqmix_ir.__path__)}
    assert not submodules & set(seqmix_ir.__all__)


@pytest.mark.parametrize("first", ["seqmix_ir.passes", "seqmix_ir.text", "seqmix_ir.interpret"])
def test_public_names_do_not_depend_on_what_was_imported_first(first: str) -> None:
    code = f"import inspect, {first}, seqmix_ir as ir\n" + (
        "bad = [n for n in ir.__all__ if inspect.ismodule(getattr(ir, n))]\nassert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_public_name_is_there() -> None:
    for name in seqmix_ir.__all__:
        assert not inspect.ismodule(getattr(seqmix_ir, name))
    with pytest.raises(AttributeError, match="has no attribute 'verfiy'"):
        _ = seqmix_ir.verfiy
