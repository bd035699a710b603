"""The loss of every token: the same however the text is cut, and in bounded memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.plugins import longcontext_cases as cases
from torch import Tensor

import seqmix
from seqmix.errors import ConfigError
from seqmix.model import Model
from seqmix_longcontext.methods import parse_method
from seqmix_longcontext.partial import Partial
from seqmix_longcontext.reading import splits, token_losses


def directly(model: Model, ids: list[int]) -> np.ndarray:
    """All logits of one call, normalized the plain way."""
    row = torch.tensor([ids])
    logits, _ = model(row, torch.arange(len(ids)).unsqueeze(0))
    return F.cross_entropy(logits[0, :-1], row[0, 1:], reduction="none").numpy()


@pytest.mark.parametrize("method", ["none", "yarn:2", "dynamic-yarn", "dynamic-ntk+granularity=5"])
@pytest.mark.parametrize("chunk", [1, 7, 80])
def test_any_chunk_gives_the_losses_of_one_call(method: str, chunk: int) -> None:
    model = parse_method(method).apply(cases.model())
    ids = cases.ids(60)  # beyond the 32 tokens that it was trained with
    found = token_losses(model, ids, chunk=chunk)
    np.testing.assert_allclose(found, directly(model, ids), rtol=0, atol=1e-9)


@pytest.mark.parametrize("skip", [0, 1, 6, 7, 8, 57])
@pytest.mark.parametrize("method", ["none", "dynamic-ntk+mode=per_window"])
def test_skipped_losses_are_left_out(method: str, skip: int) -> None:
    model = parse_method(method).apply(cases.model())
    ids = cases.ids(59)
    found = token_losses(model, ids, chunk=7, skip=skip)
    np.testing.assert_allclose(found, directly(model, ids)[skip:], rtol=0, atol=1e-9)


def test_one_scale_for_a_call_is_read_at_once() -> None:
    model = parse_method("dynamic-ntk+mode=per_window").apply(cases.model())
    ids = cases.ids(60)
    assert not splits(model.config)
    np.testing.assert_allclose(token_losses(model, ids, chunk=7), directly(model, ids), atol=1e-9)
    in_pieces = token_losses(model, ids, chunk=7, pieces=True)
    assert np.abs(in_pieces - directly(model, ids)).max() > 1e-3


@pytest.mark.parametrize(
    ("method", "expected"),
    [("none", True), ("linear:2", True), ("dynamic-yarn", True),
     ("dynamic-yarn+mode=per_window", False)],
)  # fmt: skip
def test_which_encodings_split(method: str, expected: bool) -> None:
    assert splits(parse_method(method).config(cases.config())) is expected


@pytest.mark.parametrize("method", ["none", "dynamic-ntk+mode=per_window"])
def test_never_more_logits_than_a_chunk(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse_method(method).apply(cases.model())
    seen: list[int] = []
    original = Model.logits

    def counting(self: Model, x: Tensor, logits_to_keep: int = 0) -> Tensor:
        out = original(self, x, logits_to_keep)
        seen.append(out.shape[1])
        return out

    monkeypatch.setattr(Model, "logits", counting)
    token_losses(model, cases.ids(50), chunk=8, skip=20)
    assert max(seen) <= 8
    assert sum(seen) <= 50 - 20 + 2  # one per piece where nothing is wanted


def test_a_compiled_model_gives_the_same() -> None:
    model, ids = cases.model(), cases.ids(20)
    compiled = seqmix.compile(model, backend="reference", cache=False)
    found = token_losses(compiled, ids, chunk=6, skip=3)
    np.testing.assert_allclose(found, directly(model, ids)[3:], rtol=0, atol=1e-9)


def test_a_compiled_model_of_one_scale_is_refused() -> None:
    model = parse_method("dynamic-ntk+mode=per_window").apply(cases.model())
    compiled = seqmix.compile(model, backend="torch", cache=False)
    with pytest.raises(ConfigError, match="use the backend torch, or the option mode=per_query"):
        token_losses(compiled, cases.ids(20))


def test_half_precision_is_normalized_in_float32() -> None:
    model = Model(cases.config(dtype="bf16")).eval().requires_grad_(False)
    ids = cases.ids(20)
    row = torch.tensor([ids])
    logits, _ = model(row, torch.arange(20).unsqueeze(0))
    expected = F.cross_entropy(logits[0, :-1].float(), row[0, 1:], reduction="none")
    np.testing.assert_allclose(token_losses(model, ids), expected.numpy(), atol=1e-6)


@pytest.mark.parametrize(("count", "skip", "chunk"), [(1, 0, 8), (5, 4, 8), (5, 0, 0), (5, -1, 8)])
def test_nothing_to_measure(count: int, skip: int, chunk: int) -> None:
    with pytest.raises(ConfigError, match="leave nothing to measure"):
        token_losses(cases.model(), cases.ids(count), skip=skip, chunk=chunk)


def test_a_killed_reading_goes_on(tmp_path: Path) -> None:
    model, ids = cases.model(), cases.ids(60)
    partial = Partial(tmp_path / "a.part", every=0.0)
    heard: list[int] = []

    def kill(count: int) -> None:
        heard.append(count)
        if sum(heard) == 24:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        token_losses(model, ids, chunk=8, skip=3, watch=kill, partial=partial)
    again: list[int] = []
    found = token_losses(model, ids, chunk=7, skip=3, watch=again.append, partial=partial)
    assert again[:2] == [24, 7]
    np.testing.assert_allclose(found, directly(model, ids)[3:], rtol=0, atol=1e-9)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04"])
def test_a_broken_rest_is_ignored(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(content)
    model, ids = cases.model(), cases.ids(20)
    found = token_losses(model, ids, partial=Partial(tmp_path / "a.part"))
    np.testing.assert_allclose(found, directly(model, ids), rtol=0, atol=1e-9)


def test_nothing_is_kept_of_short_readings(tmp_path: Path) -> None:
    token_losses(cases.model(), cases.ids(20), chunk=4, partial=Partial(tmp_path / "a.part"))
    assert list(tmp_path.iterdir()) == []
