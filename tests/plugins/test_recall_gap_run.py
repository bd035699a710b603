"""``seqmix eval recall-gap`` from files to files, stopped and gone on with."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.plugins.recall_gap_cases import WORDS, save_byte_model, write_texts

from seqmix.checkpoint import resolve
from seqmix.cli import invoke
from seqmix.config import Kind, ModelConfig
from seqmix.errors import ConfigError, SeqmixError
from seqmix.model import Model
from seqmix.training.byte_tokens import byte_tokenizer
from seqmix_recall import gap_run, gap_scores
from seqmix_recall.gap_run import GapRequest, run_gap
from seqmix_recall.gap_scores import ScoreFile, score_rows, score_windows
from seqmix_recall.gap_windows import cut_windows

pytest.importorskip("matplotlib")
pytest.importorskip("tokenizers")


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GapRequest:
    # Drawing takes longer than all the rest.
    monkeypatch.setattr(gap_run, "draw_places", lambda *_: b"a picture")
    text, train = write_texts(tmp_path)
    return GapRequest(
        str(save_byte_model(tmp_path / "conv", "base_conv", 1)),
        str(save_byte_model(tmp_path / "attention", "attention", 2)),
        [text],
        [train],
        tmp_path / "out",
        length=48,
        threshold=40,
        batch=2,
        resamples=50,
    )


def direct(model: Model, ids: list[int]) -> np.ndarray:
    """Log probabilities of all tokens but the first, by one plain forward."""
    with torch.no_grad():
        logits, _ = model(torch.tensor([ids[:-1]]), torch.arange(len(ids) - 1).unsqueeze(0))
    return torch.log_softmax(logits[0], -1)[range(len(ids) - 1), ids[1:]].numpy()


def test_the_command_leaves_table_numbers_picture_and_page(
    request_: GapRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    r = request_
    command = ["eval", "recall-gap", r.model, r.reference, "--text", str(r.text[0])]
    command += ["--train", str(r.train[0]), "--out", str(r.out), "--length", "48"]
    command += ["--threshold", "40", "--resamples", "50"]
    assert invoke(command) == 0
    shown = capsys.readouterr().out
    assert "AR hits" in shown
    assert "share of the gap due to AR hits" in shown
    report = json.loads((r.out / "recall_gap.json").read_text())
    rows = list(csv.DictReader((r.out / "recall_gap.csv").read_text().splitlines()))
    assert [row["slice"] for row in rows] == [row["slice"] for row in report["slices"]]
    tokens = len((WORDS * 5).encode())
    assert int(rows[0]["tokens"]) == tokens - 1
    assert report["training_tokens"] == len(((WORDS[:20] + "xyz ") * 30).encode())
    assert int(rows[1]["tokens"]) == sum(report["hits_by_position"]) > 0
    assert (r.out / "recall_gap.png").read_bytes() == b"a picture"
    assert (r.out / "recall_gap.html").read_text().startswith("<!DOCTYPE html>")


def test_scores_are_those_of_plain_forwards(request_: GapRequest) -> None:
    run_gap(request_)
    ids = list((WORDS * 5).encode())
    for source, file in ((request_.model, "model.npy"), (request_.reference, "reference.npy")):
        model = Model.from_checkpoint(resolve(source)).eval()
        scores = np.load(request_.out / file)
        for number, row in enumerate(scores):
            piece = ids[48 * number : 48 * number + 49]
            expected = direct(model, piece)
            np.testing.assert_allclose(row[: len(expected)], expected, atol=2e-5)
            assert np.isnan(row[len(expected) :]).all()


@pytest.mark.parametrize("chunk", [1, 7, 40])
@pytest.mark.parametrize("kind", ["attention", "base_conv"])
def test_chunks_and_short_rows_change_nothing(tmp_path: Path, kind: str, chunk: int) -> None:
    model = Model.from_checkpoint(resolve(save_byte_model(tmp_path / "m", kind))).eval()
    ids = list((WORDS * 2).encode())
    windows = cut_windows(np.array(ids), 33)
    tokens, valid = windows.take(0, len(windows))
    found = score_rows(model, torch.from_numpy(tokens), torch.from_numpy(valid), chunk).numpy()
    assert valid[-1].sum() < 33
    for number, (row, size) in enumerate(zip(found, windows.sizes, strict=True)):
        expected = direct(model, ids[33 * number : 33 * number + size + 1])
        np.testing.assert_allclose(row[:size], expected, atol=2e-5)


def test_a_stopped_run_goes_on_where_it_was(
    request_: GapRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run_gap(replace(request_, out=request_.out / "whole")).as_dict()
    calls: list[int] = []

    def stop_after_three(*arguments: Any) -> torch.Tensor:
        calls.append(len(arguments[1]))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return score_rows(*arguments)

    monkeypatch.setattr(gap_scores, "score_rows", stop_after_three)
    with pytest.raises(KeyboardInterrupt):
        run_gap(request_)
    done: list[tuple[str, int, int | None]] = []
    found = run_gap(request_, lambda *seen: done.append(seen)).as_dict()
    windows = expected["windows"]
    assert sum(calls[:3]) + sum(calls[4:]) == 2 * windows
    of_model = [seen[1] for seen in done if "conv" in seen[0]]
    assert of_model[0] == 6
    assert sum(of_model) == windows
    assert found == expected
    before = len(calls)
    assert run_gap(request_).as_dict() == expected
    assert len(calls) == before, "all was scored before"


def test_half_written_windows_are_scored_again(request_: GapRequest) -> None:
    expected = run_gap(request_).as_dict()
    scores = np.load(request_.out / "model.npy", mmap_mode="r+")
    scores[2, 10:] = np.nan
    scores.flush()
    assert run_gap(request_).as_dict() == expected


def test_other_weights_and_other_windows_start_anew(request_: GapRequest) -> None:
    first = run_gap(request_)
    save_byte_model(Path(request_.model), "base_conv", seed=7)
    second = run_gap(request_)
    assert second.gap.slices[0].model != first.gap.slices[0].model
    assert second.gap.slices[0].reference == first.gap.slices[0].reference
    assert run_gap(replace(request_, length=20)).windows > first.windows


def test_scores_of_another_runtime_are_taken(request_: GapRequest, tmp_path: Path) -> None:
    expected = run_gap(request_)
    path = tmp_path / "theirs.npy"
    np.save(path, np.load(request_.out / "model.npy"))
    with pytest.raises(ConfigError, match=r"theirs\.json: should say what theirs\.npy is of"):
        run_gap(replace(request_, model=str(path)))
    about = {"windows": expected.fingerprint, "model": "theirs"}
    path.with_suffix(".json").write_text(json.dumps(about))
    found = run_gap(replace(request_, model=str(path), out=tmp_path / "other"))
    assert found.model == "theirs"
    assert found.gap == expected.gap
    other_text = replace(request_, model=str(path), text=request_.train, windows=6)
    with pytest.raises(ConfigError, match="is of other windows"):
        run_gap(other_text)
    with pytest.raises(ConfigError, match="should be float32"):
        run_gap(replace(request_, model=str(path), windows=2))


def test_models_with_different_tokenizers_are_refused(request_: GapRequest) -> None:
    other = Path(request_.reference) / "tokenizer.json"
    content = json.loads(byte_tokenizer())
    vocab = content["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    other.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"different tokenizers: .* at token 5 97 and 98"):
        run_gap(request_)


def test_text_needs_a_tokenizer_and_tokens_need_none(request_: GapRequest, tmp_path: Path) -> None:
    expected = run_gap(request_)
    for model in (request_.model, request_.reference):
        (Path(model) / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"no tokenizer to read text with; put a tokenizer\.json"):
        run_gap(request_)
    tokens, train = tmp_path / "tokens.npy", tmp_path / "train.npy"
    np.save(tokens, np.frombuffer((WORDS * 5).encode(), np.uint8).astype(np.int32))
    np.save(train, np.frombuffer(request_.train[0].read_bytes(), np.uint8))
    out = tmp_path / "tokens"
    found = run_gap(replace(request_, text=[tokens], train=[train], out=out))
    assert found.gap == expected.gap
    assert "99 " in (out / "recall_gap.html").read_text()
    np.save(tokens, np.array([1, 2, 300]))
    with pytest.raises(ConfigError, match="uses id 300, the model has 256 ids"):
        run_gap(replace(request_, text=[tokens], train=[train]))
    with pytest.raises(ConfigError, match="a token file stands alone"):
        run_gap(replace(request_, text=[tokens, tokens], train=[train]))


def test_documents_are_cut_and_are_the_units(request_: GapRequest, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name no 'eos' that could separate documents"):
        run_gap(replace(request_, documents=True))
    report = run_gap(replace(request_, documents=True, separator=0, split="\n"))
    assert report.gap.units == 5
    assert report.as_dict()["errors"] == "bootstrap over 5 documents, seed 0"
    # A line and its separator, less its first byte: the line end that splits is no token.
    assert report.gap.slices[0].tokens == 5 * (len(WORDS.encode()) - 1)


def test_what_does_not_fit_is_said(request_: GapRequest) -> None:
    with pytest.raises(ConfigError, match="threshold should be at least 1, found 0"):
        run_gap(replace(request_, threshold=0))
    with pytest.raises(ConfigError, match="give a text"):
        run_gap(replace(request_, text=[]))


def test_without_matplotlib_nothing_slow_begins(
    request_: GapRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gap_run, "read_subject", None)
    monkeypatch.setattr("seqmix.plots.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"seqmix\[plots\]"):
        run_gap(request_)


def test_scores_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    model = Model.from_checkpoint(resolve(save_byte_model(tmp_path / "m", "base_conv")))
    with torch.no_grad():
        model.embed.weight[65] = torch.nan
    windows = cut_windows(np.array([66] * 20 + [65] + [66] * 20), 10)
    scores = ScoreFile.create(tmp_path / "s.npy", "m", "", windows)
    with pytest.raises(SeqmixError, match="window 2: a log probability is not finite"):
        score_windows(model, windows, scores, batch=1)
    assert scores.missing(windows).tolist() == [2, 3]
    with pytest.raises(ConfigError, match="batch and chunk should be at least 1"):
        score_windows(model, windows, scores, batch=0)


def test_the_evaluation_is_imported_without_torch() -> None:
    import subprocess

    code = (
        "import sys, seqmix_recall.gap_evaluation; "
        "print([m for m in ('torch', 'matplotlib', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_encodings_with_one_scale_per_call_are_read_at_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model(
        ModelConfig(
            vocab_size=32,
            width=16,
            context_length=8,
            head_dim=8,
            init_std=0.5,
            position=Kind(kind="dynamic-ntk", original_context_length=4, mode="per_window"),
            blocks=[{"steps": [{"kind": "attention", "heads": 2, "head_dim": 8}]}] * 2,
        )
    ).eval()
    ids = np.random.default_rng(0).integers(32, size=33)
    windows = cut_windows(ids, 16)
    scores = ScoreFile.create(tmp_path / "s.npy", "m", "", windows)
    with pytest.raises(ConfigError, match="one scale for all that is read at once"):
        score_windows(model, windows, scores, chunk=4)
    score_windows(model, windows, scores)
    np.testing.assert_allclose(scores.values[1], direct(model, ids[16:].tolist()), atol=2e-5)
