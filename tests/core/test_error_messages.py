"""What the core says when something is wrong, one golden message per situation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.golden.errors.configs import ARGUMENT, CONFIG
from tests.golden.errors.executables import BACKEND, CHECKPOINT
from tests.golden.errors.messages import Situations, cases, check_message, unclaimed
from tests.golden.errors.packages import PLUGIN
from tests.golden.errors.torch_programs import CAPTURE

from seqmix import registry


def installed() -> Mapping[str, str]:
    """The names that errors list, which grow with every plugin that is added."""
    lists = {kind: ", ".join(registry.names(kind)) for kind in registry.KINDS}
    readers = "; ".join(f"reader '{name}'" for name in registry.names("checkpoints"))
    return {readers: "<readers>"} | {names: f"<{k}>" for k, names in lists.items() if names}


@pytest.mark.parametrize(("layer", "name"), cases(CAPTURE), ids=str)
def test_capture(layer: Situations, name: str) -> None:
    check_message(layer, name, layer.message(name, {}))


@pytest.mark.parametrize(("layer", "name"), cases(CONFIG, ARGUMENT, BACKEND, CHECKPOINT), ids=str)
def test_files_and_arguments(layer: Situations, name: str, tmp_path: Path) -> None:
    replaced = {str(tmp_path): "FOLDER", **installed()}
    check_message(layer, name, layer.message(name, replaced, tmp_path))


@pytest.mark.parametrize(("layer", "name"), cases(PLUGIN), ids=str)
def test_plugins(
    layer: Situations, name: str, plugins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = {str(plugins): "FOLDER", **installed()}
    check_message(layer, name, layer.message(name, replaced, monkeypatch))


def test_every_golden_message_has_its_situation() -> None:
    assert not unclaimed([CAPTURE, CONFIG, ARGUMENT, BACKEND, CHECKPOINT, PLUGIN])
