"""The example of the recall gap, in small: models of equal size, and a run that goes on."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

# A script that imports its neighbours, as a script does.
sys.path.insert(0, str(EXAMPLES))
example: Any = importlib.import_module("recall_gap")
sys.path.remove(str(EXAMPLES))

TEXT = "".join(f"Line {i}: Ophelia saw the quick fox, and {i * i} dogs.\n" for i in range(400))


def arguments(folder: Path, *more: str) -> Any:
    text = folder / "book.txt"
    text.write_text(TEXT, encoding="utf-8")
    small = ["--width=16", "--layers=2", "--length=32", "--batch=4", "--vocabulary=280"]
    small += ["--held-out=2000", "--text", str(text), "--out", str(folder / "out")]
    return example.parse_arguments([*small, *more])


@pytest.mark.parametrize("layers", ["2", "3"])
def test_both_models_have_about_as_many_weights(tmp_path: Path, layers: str) -> None:
    args = arguments(tmp_path, "--layers", layers, "--width", "64", "--length", "256")
    one, two = (
        example.count(example.make_model(args, name))
        for name in (example.ATTENTION, example.BASE_CONV)
    )
    assert abs(one - two) / one < 0.01


def test_arguments_that_do_not_fit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        arguments(tmp_path, "--width", "20")
    assert "--width must be a multiple of 16, found 20" in capsys.readouterr().err


@pytest.mark.full
def test_the_whole_way_and_once_more(tmp_path: Path) -> None:
    for name in ("lightning_fabric", "matplotlib", "tokenizers"):
        pytest.importorskip(name)
    report = example.run(arguments(tmp_path, "--steps", "6", "--threshold", "50"))
    out = tmp_path / "out"
    assert (out / "gap" / "recall_gap.html").is_file()
    assert (report.model, report.reference) == ("base_conv", "attention")
    assert report.gap.slice("AR hits").tokens > 0
    assert "than elsewhere" in example.verdict(report)
    begun = {p: p.stat().st_mtime_ns for p in out.glob("*/training.ckpt")}
    assert len(begun) == 2
    again = example.run(arguments(tmp_path, "--threshold", "50"))
    assert again.as_dict() == report.as_dict()
    assert {p: p.stat().st_mtime_ns for p in out.glob("*/training.ckpt")} == begun
