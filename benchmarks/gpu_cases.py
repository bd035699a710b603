"""What gpu.py measures: each kernel with its operands, its peers, and a plain float64 form.

B batch, H query heads, G key heads, S queries, T keys, K key size, V value size, D channels.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from gpu_case import Case, Function, importable
from gpu_pairs import rotary_pair
from gpu_xlstm import mlstm
from torch import Tensor

__all__ = ["cases"]


def cases(device: str, small: bool) -> Iterator[Case]:
    """All of them, made one by one: they would not fit side by side."""
    from seqmix_triton.register import register

    register(device)
    torch.manual_seed(0)
    made = _Made(device, small)
    yield made.attention("attention, prompt", 32, 8, 4096, 4096, 128)
    yield made.attention("attention, one token", 32, 8, 1, 16384, 128)
    yield made.linear_attention("linear attention, decay per head", per_channel=False)
    yield made.linear_attention("linear attention, decay per channel", per_channel=True)
    yield mlstm(device, small)
    yield made.linear_scan()
    yield made.causal_conv1d()
    yield made.rms_norm()
    yield made.rotary()
    yield rotary_pair(device, small)
    yield made.cross_entropy()


class _Made:
    """Makes the cases on one device; ``small`` shrinks every size."""

    def __init__(self, device: str, small: bool) -> None:
        self._device = device
        self._small = small

    def attention(self, name: str, H: int, G: int, S: int, T: int, K: int) -> Case:
        from seqmix.ops import attention

        H, G, S, T, K = (4, 2, min(S, 20), 24, 16) if self._small else (H, G, S, T, K)
        q, k, v = self._drawn(1, H, S, K), self._drawn(1, G, T, K), self._drawn(1, G, T, K)
        places = torch.arange(T, device=self._device).unsqueeze(0)
        mask = None if S == 1 else places[0] <= places[0, T - S :, None]

        def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            causal = {"is_causal": True} if S == T else {"attn_mask": mask}
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **causal)

        return Case(
            name, (q, k, v),
            lambda q, k, v: attention(q, k, v, places[:, T - S :], places),
            fused, {"torch SDPA": fused}, 4.0 * H * S * T * K / (1 if S == 1 else 2),
        )  # fmt: skip

    def linear_attention(self, name: str, *, per_channel: bool) -> Case:
        from seqmix.ops import linear_attention

        B, H, S, K = (1, 2, 40, 16) if self._small else (4, 8, 4096, 128)
        q, k, v = (self._drawn(B, H, S, K) * K**-0.5 for _ in range(3))
        shape = (B, H, S, K) if per_channel else (B, H, S)
        g = -0.1 * torch.rand(shape, device=self._device)
        state = torch.zeros(B, H, K, K, device=self._device)

        def turned(*tensors: Tensor) -> list[Tensor]:
            return [t.transpose(1, 2).contiguous() for t in tensors]

        def fla(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
            part = "gla" if per_channel else "simple_gla"
            chunked = getattr(importlib.import_module(f"fla.ops.{part}"), f"chunk_{part}")
            out: Tensor = chunked(*turned(q, k, v, g.to(q.dtype)), scale=1.0)[0]
            return out.transpose(1, 2)

        return Case(
            name, (q, k, v, g),
            lambda q, k, v, g: linear_attention(q, k, v, g, state)[0],
            self._recurrent_attention if per_channel else self._quadratic_attention,
            {"flash-linear-attention": fla} if importable("fla") else {},
            4.0 * B * H * S * K * K,
        )  # fmt: skip

    @staticmethod
    def _quadratic_attention(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        total = g.cumsum(-1)
        gap = total.unsqueeze(-1) - total.unsqueeze(-2)
        seen = torch.ones_like(gap, dtype=torch.bool).tril()
        return ((q @ k.mT) * gap.masked_fill(~seen, -torch.inf).exp()) @ v

    @staticmethod
    def _recurrent_attention(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        state = torch.zeros_like(k[:, :, 0, :, None] * v[:, :, 0, None])
        rows = []
        for t in range(q.shape[2]):
            state = state * g[:, :, t, :, None].exp() + k[:, :, t, :, None] * v[:, :, t, None]
            rows.append((q[:, :, t, :, None] * state).sum(2))
        return torch.stack(rows, 2)

    def linear_scan(self) -> Case:
        from seqmix.ops import linear_scan

        B, S, D = (1, 20, 16) if self._small else (8, 4096, 2048)
        a, b = torch.sigmoid(self._drawn(B, S, D) + 2), self._drawn(B, S, D)
        first = torch.zeros(B, D, device=self._device, dtype=a.dtype)

        def plain(a: Tensor, b: Tensor) -> Tensor:
            h, rows = torch.zeros_like(b[:, 0]), []
            for t in range(a.shape[1]):
                h = a[:, t] * h + b[:, t]
                rows.append(h)
            return torch.stack(rows, 1)

        return Case("linear scan", (a, b), lambda a, b: linear_scan(a, b, first)[0], plain, {})

    def causal_conv1d(self) -> Case:
        from seqmix.ops import causal_conv1d

        B, D, S, W = (1, 8, 30, 4) if self._small else (8, 2048, 4096, 4)
        x, weight, bias = self._drawn(B, D, S), self._drawn(D, W), self._drawn(D)
        tail = torch.zeros(B, D, W - 1, device=self._device, dtype=x.dtype)

        def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            padded = F.pad(x, (W - 1, 0))
            return F.silu(F.conv1d(padded, weight.unsqueeze(1), bias, groups=D))

        def package(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            function = importlib.import_module("causal_conv1d").causal_conv1d_fn
            out: Tensor = function(x, weight, bias, activation="silu")
            return out

        peers = {"torch conv1d": plain}
        if importable("causal_conv1d"):
            peers["causal-conv1d"] = package
        return Case(
            "causal conv1d", (x, weight, bias),
            lambda x, w, b: causal_conv1d(x, w, b, tail, activation="silu")[0], plain, peers,
        )  # fmt: skip

    def rms_norm(self) -> Case:
        from seqmix_triton.ops.norm import rms_norm_backward, rms_norm_forward

        class Norm(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
                y, scale = rms_norm_forward(x, weight, eps=1e-6)
                ctx.save_for_backward(x, weight, scale)
                return y

            @staticmethod
            def backward(ctx: Any, *grads: Tensor) -> Any:
                return rms_norm_backward(grads[0], *ctx.saved_tensors)

        def plain(x: Tensor, weight: Tensor) -> Tensor:
            return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)

        rows, D = (5, 40) if self._small else (16384, 4096)
        operands = (self._drawn(rows, D), self._drawn(D))
        apply: Function = Norm.apply
        return Case("rms norm", operands, apply, plain, {"torch rms_norm": plain})

    def rotary(self) -> Case:
        from seqmix.ops import rotary

        B, H, S, K = (1, 2, 10, 16) if self._small else (4, 32, 4096, 128)
        x = self._drawn(B, H, S, K)
        angles = torch.randn(B, S, K // 2, device=self._device)

        def plain(x: Tensor) -> Tensor:
            cos, sin = (f(angles).to(x.dtype).unsqueeze(1) for f in (torch.cos, torch.sin))
            left, right = x.chunk(2, -1)
            return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

        tables = angles.cos(), angles.sin()
        return Case("rotary", (x,), lambda x: rotary(x, *tables), plain, {"torch": plain})

    def cross_entropy(self) -> Case:
        from seqmix.ops import cross_entropy

        N, V = (5, 40) if self._small else (8192, 49152)
        targets = torch.randint(0, V, (N,), device=self._device)

        def plain(logits: Tensor) -> Tensor:
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
            return F.cross_entropy(wide, targets, reduction="none")

        return Case(
            "cross-entropy", (4 * self._drawn(N, V),),
            lambda logits: cross_entropy(logits, targets), plain, {"torch cross_entropy": plain},
        )  # fmt: skip

    def _drawn(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self._device).to(torch.bfloat16)
