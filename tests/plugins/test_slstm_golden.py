"""The sLSTM cell against the authors' own (version 2.0.6, run in float64), and equations 41-51."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from seqmix_xlstm.slstm import slstm

GOLDEN = Path(__file__).parent.parent / "golden" / "xlstm"
FACTS = json.loads((GOLDEN / "slstm_cell.json").read_text())
Y_TOLERANCE = FACTS["tol_float32"]["y"]
GRAD_TOLERANCES = FACTS["tol_float32"]["grads"]
DTYPES = {"f32": torch.float32, "f64": torch.float64}
ROUNDED = 2e-7
"""What storing the expected values as float32 costs, relative to the largest."""
# No peer has these cases: what plain torch ops lose under autograd in float32. With the exponential
# forget gate m grows without bound, and R five times as large makes the cell chaotic.
EXP_TOLERANCE = 2.9e-6
CLIP_TOLERANCES = (1.5e-3, 2.5e-3)
B, H, D = 2, 2, 16


@pytest.fixture(params=DTYPES)
def golden(request) -> dict[str, Tensor]:
    with np.load(GOLDEN / "slstm_cell.npz") as file:
        return {k: torch.from_numpy(file[k]).to(DTYPES[request.param]) for k in file.files}


def run(a: dict[str, Tensor], past: bool, scale: float = 1.0, **options):
    """Leaves (W x, R, b and the states, all in the file's layout) and what the cell gives."""
    start = a["s0"] * past
    leaves = [x.clone().requires_grad_() for x in (a["Wx"], scale * a["R"], a["b"], start)]
    Wx, R, b, s = leaves
    gates = (Wx + b).transpose(2, 3)
    states = s.view(4, B, H, D).unbind()
    y, *last = slstm(gates, R.permute(1, 3, 0, 2), *states, **options)
    return leaves, y.flatten(2), torch.stack(last).flatten(2)


def agree(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    """Within four times what the peer itself loses in float32."""
    allowed = ROUNDED * max(1.0, float(wanted.abs().max()))
    allowed += 4 * tolerance if found.dtype == torch.float32 else 0.0
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() < allowed


def test_from_an_empty_cell(golden) -> None:
    (Wx, R, b, _), y, last = run(golden, past=False, clip=0.0)
    y.square().sum().backward()
    agree(y, golden["y"], Y_TOLERANCE)
    agree(last, golden["last"], Y_TOLERANCE)
    agree(Wx.grad[:, ::4], golden["dWx_every4"], GRAD_TOLERANCES[0])
    agree(R.grad, golden["dR"], GRAD_TOLERANCES[1])
    agree(b.grad, golden["db"], GRAD_TOLERANCES[2])


def test_from_a_state(golden) -> None:
    (Wx, _, _, s0), y, last = run(golden, past=True, clip=0.0)
    y.square().sum().backward()
    agree(y[:, ::2], golden["init_y_every2"], FACTS["tol_float32"]["init_y"])
    agree(last, golden["init_last"], Y_TOLERANCE)
    agree(Wx.grad[:, ::8], golden["init_dWx_every8"], GRAD_TOLERANCES[0])
    agree(s0.grad, golden["init_ds0"], GRAD_TOLERANCES[1])


def test_with_the_exponential_forget_gate(golden) -> None:
    (Wx, *_), y, last = run(golden, past=False, forget="exp", clip=0.0)
    y.square().sum().backward()
    agree(y[:, ::2], golden["exp_y_every2"], Y_TOLERANCE)
    agree(last, golden["exp_last"], Y_TOLERANCE)
    agree(Wx.grad[:, ::8], golden["exp_dWx_every8"], EXP_TOLERANCE)


def test_with_the_gradient_through_r_clipped(golden) -> None:
    (Wx, R, *_), y, _ = run(golden, past=False, scale=5.0)
    (4 * y.square().sum()).backward()
    agree(Wx.grad[:, ::8], golden["clip_dWx_every8"], CLIP_TOLERANCES[0])
    agree(R.grad, golden["clip_dR"], CLIP_TOLERANCES[1])
    clipped = FACTS["clip_case"]["max_abs_dWx_clipped"]
    assert float(Wx.grad.abs().max()) == pytest.approx(clipped, rel=1e-4)
