"""Dynamic scaling compiled: one graph for every length, decoding that is the full forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.core import tiny
from torch import Tensor

import seqmix
from seqmix.model import Model, flatten_states, initial_states, unflatten_states

L = 16
KINDS = ("dynamic-linear", "dynamic-ntk", "dynamic-yarn")
YARN: dict[str, Any] = {
    "kind": "dynamic-yarn", "beta_fast": 1.5, "beta_slow": 0.1, "mscale": 0.7,
    "mscale_all_dim": 1.9, "scale_softmax": True,
}  # fmt: skip


def model(layers: int, position: dict[str, Any], dtype: str = "f32") -> Model:
    """Attention over everything, and one with a window, in turn."""
    steps = [[tiny.ATTENTION], [{**tiny.ATTENTION, "window": 9}]]
    blocks = [{"steps": [step for i in range(layers) for step in steps[i % 2]]}]
    given = {"theta": 100.0, "original_context_length": L, **position}
    return tiny.model(position=given, blocks=blocks, dtype=dtype)


def compiled(made: Model, backend: str = "onnxruntime") -> Any:
    if backend == "onnxruntime":
        pytest.importorskip("onnxruntime")
    return seqmix.compile(made, backend=backend, cache=False)


@pytest.mark.parametrize(
    ("backend", "position"),
    [
        ("onnxruntime", YARN),
        pytest.param("reference", YARN, marks=pytest.mark.full),
        pytest.param("onnxruntime", {"kind": "dynamic-ntk"}, marks=pytest.mark.full),
        pytest.param("reference", {"kind": "dynamic-ntk"}, marks=pytest.mark.full),
    ],
)
def test_one_graph_serves_every_length(backend: str, position: dict[str, Any]) -> None:
    made = model(2, position)
    graph = compiled(made, backend)
    ids, positions = tiny.tokens(2, 2 * L + 40)
    for past, length in ((0, L - 3), (0, L + 1), (L - 3, 7), (L + 39, 1), (2 * L, 5), (0, 2 * L)):
        states = initial_states(made, 2)
        if past:
            _, after = made(ids[:, :past], positions[:, :past])
            states = flatten_states(made, after)
        new = slice(past, past + length)
        expected, after = made(ids[:, new], positions[:, new], unflatten_states(made, states))
        logits, found = graph(ids[:, new], positions[:, new].contiguous(), states)
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
        for name, tensor in flatten_states(made, after).items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-5)


def prompts(ids: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """The first tokens of each row, padded on the left, and their positions."""
    longest = max(lengths)
    rows = [
        torch.cat([r[:1].expand(longest - n), r[:n]]) for r, n in zip(ids, lengths, strict=True)
    ]
    count = torch.arange(longest)
    places = [(count - (longest - n)).clamp(min=-1) for n in lengths]
    return torch.stack(rows), torch.stack(places)


@pytest.mark.parametrize(
    ("kind", "layers", "dtype"),
    [
        ("dynamic-ntk", 2, "f32"),
        *(
            pytest.param(kind, layers, dtype, marks=pytest.mark.full)
            for kind in KINDS
            for layers in (1, 2, 4)
            for dtype in ("f32", "f64")
            if (kind, layers, dtype) != ("dynamic-ntk", 2, "f32")
        ),
    ],
)
def test_decoding_rows_of_different_lengths_is_the_full_forward_of_each(
    kind: str, layers: int, dtype: str
) -> None:
    """From a prompt below L across L, from L itself, and at 2 L and beyond."""
    made, steps = model(layers, {"kind": kind}, dtype), 12
    graph, lengths = compiled(made), [L - 3, L, L + 1, 2 * L - 6, L + 28]
    ids, positions = tiny.tokens(len(lengths), max(lengths) + steps)
    logits, states = graph(*prompts(ids, lengths), initial_states(made, len(lengths)))
    found = [logits[:, -1]]
    for step in range(steps):
        places = torch.tensor([[n + step] for n in lengths])
        logits, states = graph(ids.gather(1, places), places, states)
        found.append(logits[:, 0])
    bound = 1e-5 if dtype == "f32" else 1e-10
    for i, n in enumerate(lengths):
        whole, _ = made(ids[i : i + 1, : n + steps], positions[i : i + 1, : n + steps])
        error = (torch.stack(found, 1)[i] - whole[0, n - 1 :]).abs().max()
        assert error < bound * whole.abs().max()


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_prompt_leaves_no_trace(kind: str) -> None:
    made = model(2, {"kind": kind})
    graph = compiled(made)
    ids, positions = tiny.tokens(1, 4 * L)
    short = ids[:, : L + 5], positions[:, : L + 5].contiguous(), initial_states(made, 1)
    before, _ = graph(*short)
    graph(ids, positions.contiguous(), initial_states(made, 1))
    assert torch.equal(graph(*short)[0], before)
