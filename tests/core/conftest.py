"""Throw-away plugins, installed once per session, and put on the path test by test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.core.plugins_installed.samples import SAMPLES
from tests.core.plugins_installed.wheels import install

from seqmix import hooks, registry


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory into which pip has installed every sample."""
    pytest.importorskip("pip", reason="the sample plugins are installed with pip")
    return install(SAMPLES, tmp_path_factory.mktemp("plugins"))


@pytest.fixture
def plugins(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The samples on the path of this process, and nothing of them imported yet."""
    monkeypatch.delenv("SEQMIX_BLOCK_PLUGINS", raising=False)
    monkeypatch.delenv("SEQMIX_STRICT_PLUGINS", raising=False)
    monkeypatch.syspath_prepend(str(installed))
    _forget()
    yield installed
    _forget()


def _forget() -> None:
    registry.clear()
    hooks.clear()
    for name in [name for name in sys.modules if name.startswith("throwaway_")]:
        del sys.modules[name]
