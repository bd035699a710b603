"""The file for one token: it gives what the file for any length gives, in fewer nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor

import seqmix
from seqmix.backend import Executable
from seqmix.config import ModelConfig, build_config
from seqmix.model import Model
from seqmix_onnxruntime.model_file import DATA, MODEL, STEP
from seqmix_xlstm.families import xlstm_block_stack_config, xlstm_large_config

TRANSFORMER: dict[str, Any] = {
    "vocab_size": 31,
    "width": 24,
    "context_length": 64,
    "head_dim": 6,
    "position": {"kind": "rope", "theta": 100.0},
    "blocks": [
        {"steps": [{"kind": "attention", "heads": 4, "head_dim": 6, "kv_heads": 2, "bias": True}]},
        {"steps": [{"kind": "attention", "heads": 4, "head_dim": 6, "window": 5}]},
        {"steps": [{"kind": "swiglu", "hidden": 40}]},
    ],
}


def config(kind: str) -> ModelConfig:
    if kind == "transformer":
        return build_config(ModelConfig, TRANSFORMER, "test")
    if kind == "large":
        return xlstm_large_config(31, 48, 2, heads=3)
    return xlstm_block_stack_config(31, 24, 3, heads=3, slstm_at=[1], round_up_to=12)


@pytest.fixture(
    scope="module",
    params=["large", *(pytest.param(k, marks=pytest.mark.full) for k in ("transformer", "stack"))],
)
def pair(request: pytest.FixtureRequest) -> tuple[Model, Executable, Executable]:
    torch.manual_seed(0)
    model = Model(config(request.param)).eval()
    both = [
        seqmix.compile(model, "onnxruntime", options={"step": step, "threads": 1}, cache=False)
        for step in (True, False)
    ]
    return model, both[0], both[1]


def nodes(executable: Any, file: str) -> list[onnx.NodeProto]:
    return list(onnx.load(executable.folder / file, load_external_data=False).graph.node)


def decode(executable: Executable, ids: Tensor, positions: Tensor) -> list[Tensor]:
    states, logits = executable.initial_state(ids.shape[0]), []
    for t in range(ids.shape[1]):
        out, states = executable(ids[:, t : t + 1], positions[:, t : t + 1], states)
        logits.append(out)
    return [*logits, *states.values()]


def test_tokens_one_by_one_with_padding_among_them(pair: Any) -> None:
    _, step, plain = pair
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]])
    positions = torch.tensor([[0, 1, -1, 2, 3, -1, -1, 4, 5, 6]])
    for found, wanted in zip(
        decode(step, ids, positions), decode(plain, ids, positions), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)


def test_a_prompt_and_then_tokens_equal_the_model(pair: Any) -> None:
    model, step, _ = pair
    ids, positions = torch.arange(9).unsqueeze(0) % 31, torch.arange(9).unsqueeze(0)
    wanted, _ = model(ids, positions)
    first, states = step(ids[:, :7], positions[:, :7])
    found = [first]
    for t in (7, 8):
        logits, states = step(ids[:, t : t + 1], positions[:, t : t + 1], states)
        found.append(logits)
    torch.testing.assert_close(torch.cat(found, 1), wanted.detach(), rtol=2e-5, atol=2e-5)


def test_only_one_token_of_one_row_opens_the_second_file(pair: Any) -> None:
    _, step, _ = pair
    fresh = seqmix.compile(pair[0], "onnxruntime", options={"threads": 1}, cache=False)
    ids = torch.zeros(2, 1, dtype=torch.int64)
    fresh(ids, ids)
    fresh(ids[:1].expand(1, 2), torch.tensor([[0, 1]]))
    assert set(fresh._sessions) == {MODEL}
    fresh(ids[:1], ids[:1])
    assert set(fresh._sessions) == {MODEL, STEP}
    assert (step.folder / STEP).is_file()


def test_it_has_no_loops_and_fewer_nodes(pair: Any) -> None:
    _, step, _ = pair
    small, whole = nodes(step, STEP), nodes(step, MODEL)
    assert not {"Scan", "If", "Loop"} & {node.op_type for node in small}
    assert len(small) < len(whole)


def test_projections_of_one_input_are_one_product(pair: Any) -> None:
    _, step, _ = pair
    for file in (MODEL, STEP):
        graph = onnx.load(step.folder / file, load_external_data=False).graph
        names = {i.name for i in graph.initializer}
        joined = [name for name in names if "+" in name]
        assert joined
        # No weight is there by itself and as a part of another.
        assert not names & {part for name in joined for part in name.removesuffix(".T").split("+")}
        users = [n for n in graph.node if n.op_type == "MatMul" and set(n.input) & set(joined)]
        assert len(users) == len(joined)


def test_weights_lie_on_disk_once(pair: Any) -> None:
    model, step, _ = pair
    stored = sum(p.numel() * 4 for p in model.parameters())
    assert (step.folder / DATA).stat().st_size < 1.5 * stored + 4096 * len(list(model.parameters()))


def test_saved_and_loaded_with_both_files(pair: Any, tmp_path: Path) -> None:
    _, step, _ = pair
    step.save(tmp_path)
    loaded = seqmix.load(tmp_path)
    ids = torch.tensor([[7]])
    torch.testing.assert_close(loaded(ids, ids)[0], step(ids, ids)[0], rtol=0, atol=0)
    assert STEP in loaded.report.bytes


def test_a_file_for_any_runtime_has_no_second_one() -> None:
    torch.manual_seed(0)
    model = Model(config("transformer"))
    executable = seqmix.compile(model, "onnxruntime", options={"contrib": False}, cache=False)
    assert not (executable.folder / STEP).exists()
