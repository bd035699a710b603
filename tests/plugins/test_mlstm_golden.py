"""The mLSTM cell against the recurrent cell of the authors' own kernels, run in float64."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from seqmix_xlstm.mlstm import mlstm

GOLDEN = Path(__file__).parent.parent / "golden" / "xlstm"
FACTS = json.loads((GOLDEN / "mlstm_cell.json").read_text())
TOLERANCE = FACTS["tol_float32_chunk16"]
FORMS = ("chunkwise", "recurrent", "parallel")
DTYPES = {"f32": torch.float32, "f64": torch.float64}
ROUNDED = 2e-7
"""What storing the expected values as float32 costs, relative to the largest."""


def load(dtype: torch.dtype) -> dict[str, Tensor]:
    with np.load(GOLDEN / "mlstm_cell.npz") as file:
        return {key: torch.from_numpy(file[key]).to(dtype) for key in file.files}


def start(a: dict[str, Tensor], past: bool) -> list[Tensor]:
    state = torch.cat([a["C0"], a["n0"].unsqueeze(3)], 3)
    given = [a[name] for name in "qkvif"] + [state * past, a["m0"][..., 0] * past]
    return [x.clone().requires_grad_() for x in given]


def agree(found: Tensor, wanted: Tensor, tolerance: float, dtype: str) -> None:
    allowed = ROUNDED * float(wanted.abs().max()) + (4 * tolerance if dtype == "f32" else 0.0)
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() < allowed


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_and_states(dtype: str, form: str, past: bool) -> None:
    a, prefix = load(DTYPES[dtype]), "init_" if past else ""
    h, state, m = mlstm(*start(a, past), form=form, chunk=16)
    tolerance = TOLERANCE[f"{prefix}h"]
    agree(h[:, :, ::8] if past else h, a["init_h_every8" if past else "h"], tolerance, dtype)
    agree(state[..., :-1], a[f"{prefix}C_last"], tolerance, dtype)
    agree(state[..., -1], a[f"{prefix}n_last"], tolerance, dtype)
    agree(m, a[f"{prefix}m_last"][..., 0], tolerance, dtype)


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients(dtype: str, form: str, past: bool) -> None:
    """Of the sum of all h squared; the file has every nth token of some."""
    a = load(DTYPES[dtype])
    given = start(a, past)
    h, _, _ = mlstm(*given, form=form, chunk=16)
    slopes = dict(zip("qkvifCm", torch.autograd.grad(h.square().sum(), given), strict=True))
    steps = dict.fromkeys("qkv", 8) if past else {"q": 2, "k": 2, "v": 4}
    tolerances = TOLERANCE["init_grads" if past else "grads_qkvif"]
    for name, tolerance in zip("qkvif", tolerances, strict=False):
        step = steps.get(name, 1)
        key = f"{'init_' if past else ''}d{name}" + (f"_every{step}" if step > 1 else "")
        agree(slopes[name][:, :, ::step], a[key], tolerance, dtype)
    if past:
        of_c, of_n, of_m = tolerances[5:]
        agree(slopes["C"][..., :-1], a["init_dC0"], of_c, dtype)
        agree(slopes["C"][..., -1], a["init_dn0"], of_n, dtype)
        agree(slopes["m"], a["init_dm0"][..., 0], of_m, dtype)
