"""mLSTM is gates and a linear attention: exact in float64, and one fused operator in ONNX."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.backends.onnx_graphs import compile_module, kinds_of, run_arrays
from torch import Tensor, nn

from seqmix.capture import capture_function
from seqmix.ops import linear_attention, linear_scan
from seqmix_ir import DimInfo

H, K, V = 3, 5, 7


class MLstm(nn.Module):
    """The stabilised cell; its state is C with the normalizer as a last column, and m."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        input_gate: Tensor,
        forget_gate: Tensor,
        state: Tensor,
        m: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``q``, ``k [B, H, S, K]``, ``v [B, H, S, V]``, gates ``[B, S, H]`` before activation."""
        log_f = nn.functional.logsigmoid(forget_gate)
        stabilizer, last = linear_scan(log_f, input_gate, m, semiring="max_plus")
        before = torch.cat([m.unsqueeze(1), stabilizer[:, :-1]], 1)
        decay = (log_f + before - stabilizer).transpose(1, 2)
        scaled = k * torch.exp(input_gate - stabilizer).transpose(1, 2).unsqueeze(-1)
        widened = torch.cat([v, torch.ones_like(v[..., :1])], -1)
        y, state = linear_attention(q * K**-0.5, scaled, widened, decay, state)
        floor = torch.exp(-stabilizer).transpose(1, 2).unsqueeze(-1)
        return y[..., :-1] / torch.maximum(y[..., -1:].abs(), floor), state, last


def recurrence(q, k, v, input_gate, forget_gate, state, m):
    """Equations 19 to 27 of the paper (xLSTM, appendix A.3), one token after the other."""
    c, n, ys = state[..., :-1], state[..., -1], []
    for t in range(q.shape[2]):
        log_f, i = nn.functional.logsigmoid(forget_gate[:, t]), input_gate[:, t]
        new = torch.maximum(log_f + m, i)
        f, i = torch.exp(log_f + m - new), torch.exp(i - new)
        c = f[..., None, None] * c + i[..., None, None] * k[:, :, t, :, None] * v[:, :, t, None]
        n, m = f[..., None] * n + i[..., None] * k[:, :, t], new
        scaled = q[:, :, t] * K**-0.5
        below = torch.maximum((n * scaled).sum(-1).abs(), torch.exp(-m))
        ys.append(torch.einsum("bhk,bhkv->bhv", scaled, c) / below[..., None])
    return torch.stack(ys, 2), torch.cat([c, n[..., None]], -1), m


def operands(batch: int, length: int, dtype: torch.dtype, past: bool = True) -> list[Tensor]:
    torch.manual_seed(length)
    shapes = [(batch, H, length, K)] * 2 + [(batch, H, length, V)] + [(batch, length, H)] * 2
    q, k, v, i, f = (torch.randn(s, dtype=dtype) for s in shapes)
    state, m = torch.randn(batch, H, K, V + 1, dtype=dtype), torch.randn(batch, H, dtype=dtype)
    return [q, k, v, 3 * i, f + 2, state * past, m * past]


@pytest.mark.parametrize("length", [1, 7, 64, 333])
def test_it_is_the_recurrence(length: int) -> None:
    given = operands(2, length, torch.float64)
    for found, wanted in zip(MLstm()(*given), recurrence(*given), strict=True):
        assert (found - wanted).abs().max() < 1e-9


@pytest.fixture(scope="module")
def exported() -> Callable[[list[Tensor]], dict[str, np.ndarray]]:
    names = ["q", "k", "v", "input_gate", "forget_gate", "state", "m"]
    token, row = ("B", None, "S", None), ("B", "S", None)
    captured = capture_function(
        MLstm(),
        operands(2, 5, torch.float32),
        input_names=names,
        output_names=["y", "next_state", "next_m"],
        dynamic=[token, token, token, row, row, ("B", None, None, None), ("B", None)],
        dims=[DimInfo("B"), DimInfo("S")],
        graph="main",
    )
    executable = compile_module(captured.module)
    assert kinds_of(executable)["LinearAttention"] == 1

    def run(given: list[Tensor]) -> dict[str, np.ndarray]:
        arrays = {name: x.numpy() for name, x in zip(names, given, strict=True)}
        return run_arrays(executable, arrays)

    return run


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("length", [1, 7, 64, 333])
def test_one_export_runs_at_every_length(exported, length: int, past: bool) -> None:
    given = operands(2, length, torch.float32, past)
    found = exported(given)
    y, state, m = recurrence(*(x.double() for x in given))
    np.testing.assert_allclose(found["y"], y, rtol=1e-4, atol=2e-5)
    # m may drift by rounding: what it scales is compared.
    scaled = found["next_state"] * np.exp(found["next_m"].astype("f8"))[..., None, None]
    exact = (state * torch.exp(m)[..., None, None]).numpy()
    np.testing.assert_allclose(scaled, exact, rtol=2e-4, atol=2e-4 * np.abs(exact).max())
