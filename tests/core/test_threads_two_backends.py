"""Two backends in one process, whose calls alternate or come from two threads: as if alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.core import tiny
from tests.core.in_threads import session, together

from seqmix.compile import compile


@pytest.mark.full
def test_onnxruntime_and_tvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tvm")
    monkeypatch.setenv("SEQMIX_CACHE_DIR", str(tmp_path))
    models = [tiny.model([tiny.ATTENTION], seed=seed) for seed in (0, 1)]
    pair = [compile(m, b) for m, b in zip(models, ("onnxruntime", "tvm"), strict=True)]
    alone = [[session(executable, n, 3) for n in range(4)] for executable in pair]
    # One call of each after the other.
    for number in range(4):
        for executable, expected in zip(pair, alone, strict=True):
            found = session(executable, number, 3)
            assert all(map(torch.equal, found, expected[number]))
    # Both at once.
    results = together(lambda n: [session(pair[n % 2], n // 2, 3) for _ in range(5)], 8)
    for n, rounds in enumerate(results):
        for found in rounds:
            assert all(map(torch.equal, found, alone[n % 2][n // 2]))
    with torch.no_grad():
        for model, executable in zip(models, pair, strict=True):
            ids, positions = tiny.tokens(2, 6)
            expected_logits, _ = model(ids, positions)
            logits, _ = executable(ids, positions)
            torch.testing.assert_close(logits, expected_logits, atol=1e-4, rtol=1e-4)
