"""Operands for the sLSTM cell, and the cell of the paper in plain torch ops under autograd."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from seqmix.ops import clip_gradient
from seqmix.scan import scan

__all__ = ["STATES", "operands", "plain_slstm", "worst"]

STATES = ("h", "c", "n", "m")


def operands(
    B: int, S: int, H: int, D: int, dtype: torch.dtype = torch.float64, past: bool = True
) -> list[Tensor]:
    """Gates, R and the four states; ``past`` False gives those of an empty cell."""
    torch.manual_seed(1000 * B + S)
    gates = torch.randn(B, S, H, 4, D, dtype=torch.float64) * 1.5
    recurrent = torch.randn(H, D, 4, D, dtype=torch.float64) / D**0.5
    h, c, m = (torch.randn(B, H, D, dtype=torch.float64) * past for _ in range(3))
    n = (1 + torch.rand(B, H, D, dtype=torch.float64)) * past
    return [x.to(dtype) for x in (gates, recurrent, h, c, n, m)]


def plain_slstm(
    gates: Tensor,
    recurrent: Tensor,
    h: Tensor,
    c: Tensor,
    n: Tensor,
    m: Tensor,
    valid: Tensor | None = None,
    *,
    forget: str = "sigmoid",
    clip: float = 10.0,
) -> tuple[Tensor, ...]:
    """Equations 15 to 17 and 33 to 40, one token after the other."""
    here = torch.ones(gates.shape[:2], dtype=torch.bool) if valid is None else valid

    def cell(carries, slices, constants):
        h, c, n, m = carries
        fed = clip_gradient(h, clip) if clip else h
        pre = slices[0] + torch.einsum("bhd,hdge->bhge", fed, constants[0])
        i, f, z, o = pre.unbind(2)
        log_f = logsigmoid(f) if forget == "sigmoid" else f
        new_m = torch.where((n == 0) & (c == 0), i, torch.maximum(i, log_f + m))
        i, f = torch.exp(i - new_m), torch.exp((log_f + m - new_m).clamp(max=80.0))
        new_c, new_n = f * c + i * torch.tanh(z), f * n + i
        new_h = torch.sigmoid(o) * new_c / new_n
        mask = slices[1][:, None, None]
        new = [
            torch.where(mask, x, y)
            for x, y in zip((new_h, new_c, new_n, new_m), carries, strict=True)
        ]
        return new, (torch.where(mask, new_h, 0.0),)

    last, (y,) = scan(cell, (h, c, n, m), (gates, here), (recurrent,))
    return y, *last


def worst(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    assert found.shape == wanted.shape
    return float((found.double() - wanted.double()).abs().max() / wanted.double().abs().max())
