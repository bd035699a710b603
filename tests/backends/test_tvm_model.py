"""A whole small model on the tvm backend: torch's logits, pieces, padding, and its folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tests.backends.needs_tvm  # noqa: F401  # skips
import torch
from tests.core import tiny
from torch import Tensor

from seqmix.backend import Executable
from seqmix.compile import compile
from seqmix.errors import BackendError
from seqmix.generate import generate_all
from seqmix.model import Model, initial_states, unflatten_states
from seqmix_tvm.backend import TvmBackend
from seqmix_tvm.compiled_model import seal_of
from seqmix_tvm.session import TvmExecutable


@pytest.fixture(scope="module")
def pair() -> tuple[Model, Executable]:
    model = tiny.model()
    return model, compile(model, TvmBackend(), cache=False)


@pytest.fixture
def folder(pair: tuple[Model, Executable], tmp_path: Path) -> Path:
    pair[1].save(tmp_path / "saved")
    return tmp_path / "saved"


def logits(model: Model, ids: Tensor, positions: Tensor) -> Tensor:
    first = unflatten_states(model, initial_states(model, len(ids)))
    return model(ids, positions, first)[0]


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 7), (3, 65), (1, 130)])
def test_logits_are_those_of_torch_in_any_pieces(
    pair: tuple[Model, Executable], batch: int, length: int
) -> None:
    model, executable = pair
    ids, positions = tiny.tokens(batch, length)
    wanted = logits(model, ids, positions)
    torch.testing.assert_close(executable(ids, positions)[0], wanted, rtol=2e-5, atol=2e-4)
    states, pieces = None, []
    for start in range(0, length, 9):
        piece = slice(start, start + 9)
        out, states = executable(ids[:, piece], positions[:, piece], states)
        pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, 1), wanted, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("where", ["left", "right", "middle"])
def test_padding_changes_nothing(pair: tuple[Model, Executable], where: str) -> None:
    model, executable = pair
    row = tiny.tokens(1, 9)[0][0]
    wanted = logits(model, row.unsqueeze(0), torch.arange(9).unsqueeze(0))
    ids, positions = tiny.padded(row, 14, where)
    found = executable(ids, positions)[0][positions >= 0]
    torch.testing.assert_close(found, wanted[0], rtol=2e-5, atol=2e-4)


def test_greedy_text_is_that_of_torch(pair: tuple[Model, Executable]) -> None:
    model, executable = pair
    prompts = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3, 5]]
    wanted = generate_all(model, prompts, max_new_tokens=11)
    assert generate_all(executable, prompts, max_new_tokens=11) == wanted
    assert generate_all(executable, prompts, max_new_tokens=11, prefill_chunk=3) == wanted
    assert len({token for row in wanted for token in row}) > 2


def test_pointwise_ops_end_in_the_products(pair: tuple[Model, Executable]) -> None:
    kernels = set(pair[1].report.kernels)
    assert any(name.startswith("linear_silu_mul") for name in kernels)
    assert any(name.startswith("linear_gelu") for name in kernels)
    assert any(name.startswith("attention") for name in kernels)


def test_inputs_in_any_memory_and_results_of_their_own(pair: tuple[Model, Executable]) -> None:
    model, executable = pair
    ids, positions = tiny.tokens(4, 9)
    wanted = logits(model, ids, positions)
    turned = ids.t().contiguous().t()
    aside = torch.empty(37, dtype=torch.int64)[1:].view(4, 9).copy_(positions)
    first, states = executable(turned, aside)
    again, _ = executable(ids, positions)
    torch.testing.assert_close(first, wanted, rtol=2e-5, atol=2e-4)
    assert torch.equal(first, again)
    assert first.data_ptr() != again.data_ptr()
    assert len({t.data_ptr() for t in states.values() if t.numel()}) == len(
        [t for t in states.values() if t.numel()]
    )


def test_a_saved_folder_gives_the_same(pair: tuple[Model, Executable], folder: Path) -> None:
    ids, positions = tiny.tokens(2, 9)
    loaded = TvmBackend().load(folder)
    assert torch.equal(loaded(ids, positions)[0], pair[1](ids, positions)[0])
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["entries"]["forward"]["inputs"]["input_ids"] == {
        "dtype": "i64",
        "shape": ["B", "S"],
    }


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("forward.so", "expected sha256"),
        ("stored.safetensors", "expected sha256"),
        ("manifest.json", "no manifest of a compiled model"),
    ],
)
def test_a_damaged_folder_is_refused(folder: Path, file: str, message: str) -> None:
    path = folder / file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BackendError, match=message):
        TvmBackend().load(folder)
    path.unlink()
    with pytest.raises(BackendError, match=r"no file|no manifest"):
        TvmBackend().load(folder)


def test_a_folder_of_another_version_is_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    manifest = {**json.loads(path.read_text()), "tvm": "0.99.0"}
    path.write_text(json.dumps({**manifest, "seal": seal_of(manifest)}))
    with pytest.raises(BackendError, match=r"made by TVM 0\.99\.0"):
        TvmBackend().load(folder)


def test_wrong_options_targets_and_inputs(pair: tuple[Model, Executable]) -> None:
    model, executable = pair
    with pytest.raises(BackendError, match="no option 'mcpus'; did you mean"):
        compile(model, TvmBackend(), options={"mcpus": "znver2"}, cache=False)
    with pytest.raises(BackendError, match="no target 'tpu'"):
        compile(model, TvmBackend(), target="tpu", cache=False)
    ids, positions = tiny.tokens(1, 3)
    assert isinstance(executable, TvmExecutable)
    with pytest.raises(BackendError, match=r"input_ids should be in 0\.\.52, found 53"):
        executable(ids.fill_(tiny.VOCAB), positions)
