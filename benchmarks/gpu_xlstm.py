"""The mLSTM cell as gpu.py measures it.

B batch, H heads, S sequence, K key size, V value size.
"""

from __future__ import annotations

import importlib

import torch
import torch.nn.functional as F
from gpu_case import Case, Function, importable
from torch import Tensor

__all__ = ["mlstm"]


def mlstm(device: str, small: bool) -> Case:
    """A prompt from an empty state, with the sizes of a head of xLSTM 7B."""
    from seqmix_xlstm.mlstm import mlstm as cell

    B, H, S, K, V = (1, 2, 40, 16, 24) if small else (2, 8, 4096, 256, 512)
    q, k, v = (torch.randn(B, H, S, n, device=device).to(torch.bfloat16) for n in (K, K, V))
    i, f = torch.randn(B, H, S, device=device), 2 + torch.randn(B, H, S, device=device)
    state, m = torch.zeros(B, H, K, V + 1, device=device), torch.zeros(B, H, device=device)
    peers = {"mlstm_kernels": _package()} if importable("mlstm_kernels") else {}

    def ours(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
        return cell(q, k, v, i, f, state, m)[0]

    return Case("mlstm", (q, k, v, i, f), ours, _quadratic, peers, 4.0 * B * H * S * K * V)


def _package() -> Function:
    def run(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
        kernels = importlib.import_module("mlstm_kernels.torch")
        chunkwise = kernels.get_mlstm_kernel("chunkwise--triton_xl_chunk")
        out: Tensor = chunkwise(q=q, k=k, v=v, i=i, f=f, autocast_kernel_dtype=q.dtype)
        return out

    return run


def _quadratic(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    """The parallel form, from an m of 0."""
    total = F.logsigmoid(f).cumsum(-1)
    reached = total.unsqueeze(-1) - total.unsqueeze(-2) + i.unsqueeze(-2)
    seen = torch.ones_like(reached, dtype=torch.bool).tril()
    reached = reached.masked_fill(~seen, -torch.inf)
    stabilizer = torch.maximum(reached.amax(-1), total)
    scores = (q @ k.mT) * q.shape[-1] ** -0.5 * torch.exp(reached - stabilizer.unsqueeze(-1))
    below = torch.maximum(scores.sum(-1).abs(), torch.exp(-stabilizer)) + 1e-6
    h: Tensor = (scores @ v) / below.unsqueeze(-1)
    return h
