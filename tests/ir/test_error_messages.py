"""What the graph IR says when something is wrong, one golden message per situation."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.golden.errors.graphs import BUILD, LEGALIZE, RUN
from tests.golden.errors.messages import Situations, cases, check_message, unclaimed
from tests.golden.errors.verifier import VERIFY
from tests.ir.golden_files import check_golden, golden_input

from seqmix_ir import IRError, parse

LAYERS = (VERIFY, LEGALIZE, RUN, BUILD)
FOLDER = Path(__file__).parent.parent / "golden" / "errors"


@pytest.mark.parametrize("path", sorted((FOLDER / "parse").glob("*.txt")), ids=lambda p: p.stem)
def test_parse_errors(path: Path) -> None:
    with pytest.raises(IRError) as caught:
        parse(golden_input(path), file="model.txt")
    check_golden(path, str(caught.value))


@pytest.mark.parametrize(("layer", "name"), cases(*LAYERS), ids=str)
def test_messages(layer: Situations, name: str) -> None:
    check_message(layer, name, layer.message(name, {str(FOLDER): "FOLDER"}))


def test_every_golden_message_has_its_situation() -> None:
    assert not unclaimed(LAYERS)


@pytest.mark.parametrize("name", VERIFY.named)
def test_reports_of_long_graphs_stay_short(name: str) -> None:
    lines = VERIFY.message(name, {}).splitlines()
    assert len(lines) < 60
    assert max(map(len, lines)) < 1200
