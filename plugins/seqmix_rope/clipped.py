"""Rotary attention whose distances are clipped, and which may see the start and a window only.

Eagerly it is fused attention over two or three disjoint sets of keys, whose results are joined by
their log-sum-exp, so that logits are never held for all queries; in a captured graph it is one
attention whose logits are chosen of two.

B batch, H query heads, G key heads, M = H / G, S queries, T keys, K key size, V value size,
R rotated size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from seqmix.context import valid_last
from seqmix.ops.attention import attention
from seqmix.ops.attention_chunks import finite, wide_dtype
from seqmix.ops.rotary import rotary
from seqmix_rope.own_rotation import unit_turns

__all__ = ["ClippedRule", "clipped_attention"]

# With what the op saves for its backward pass: kernels of a device and counters of work see these.
_FORWARD = torch.ops.seqmix.attention.default
_BACKWARD = torch.ops.seqmix.attention_backward.default


@dataclass(frozen=True, slots=True)
class ClippedRule:
    """Which keys a query sees, and how far away they seem; lengths in tokens.

    A key ``d`` tokens before its query is turned as if it were ``d`` away up to ``clip``, and
    ``clip + (d - clip) * slope`` beyond. With a ``window`` a query sees the keys less than that
    many tokens before it, and those at the ``first`` positions; ``clip`` is at most ``window``.
    ``frequencies`` are radians per token of each pair, ``scale`` 0 stands for ``1/sqrt(K)``.
    """

    frequencies: tuple[float, ...]
    clip: int
    slope: float = 0.0
    window: int = 0
    first: int = 0
    scale: float = 0.0
    interleaved: bool = False


def clipped_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    rule: ClippedRule,
) -> Tensor:
    """Attend from ``q [B, H, S, K]`` to ``k [B, G, T, K]``, ``v [B, G, T, V]``: ``[B, H, S, V]``.

    Neither is rotated; positions are ``[B, S]`` and ``[B, T]``, -1 at padding. Differentiable in q,
    k and v.
    """
    near = _turned(q, query_positions, rule), _turned(k, key_positions, rule)
    # Beyond the clip the distance is (t * slope + clip * (1 - slope)) - s * slope.
    shift = rule.clip * (1 - rule.slope)
    far = _turned(q, query_positions, rule, rule.slope, shift), k
    if rule.slope:
        far = far[0], _turned(k, key_positions, rule, rule.slope)
    places = query_positions, key_positions
    if torch.compiler.is_compiling():
        return _by_logits(*near, *far, v, *places, rule)
    start = _start(far[1], v, key_positions, rule.first) if rule.window and rule.first else None
    given = (*near, *far, v, *(start or (None, None, None)), *places, rule)
    out: Tensor = _Clipped.apply(*given)  # type: ignore[no-untyped-call]
    return out


def _start(k: Tensor, v: Tensor, positions: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and positions of the first tokens: few slots, and those of padding where less.

    So attention to them costs as many products as there are, not as many as there are keys.
    """
    order, _ = valid_last((positions >= 0) & (positions < first))
    slots = order[:, -first:]
    found = torch.gather(positions, 1, slots)
    rows = slots[:, None, :, None]
    keys, values = (torch.gather(x, 2, rows.expand(-1, x.shape[1], -1, x.shape[3])) for x in (k, v))
    return keys, values, torch.where(found < first, found, -1)


def _turned(
    x: Tensor, positions: Tensor, rule: ClippedRule, slope: float = 1.0, shift: float = 0.0
) -> Tensor:
    """``x [B, H, N, K]`` turned by the angles of ``positions * slope + shift``."""
    wide = wide_dtype(x)
    inv_freq = torch.tensor(rule.frequencies, dtype=torch.float64, device=x.device)
    if shift or torch.compiler.is_compiling():
        places = positions.clamp(min=0).to(torch.float64).unsqueeze(-1) * slope + shift
        cos, sin = torch.cos(places * inv_freq), torch.sin(places * inv_freq)
    else:
        rows = (inv_freq * slope).expand(x.shape[0], 1, -1)
        turns = unit_turns(positions, rows, torch.zeros_like(positions[:, :1]), None, wide)[:, 0]
        cos, sin = turns.real.contiguous(), turns.imag.contiguous()
    return rotary(x, cos.to(wide), sin.to(wide), interleaved=rule.interleaved)


def _by_logits(
    near_q: Tensor,
    near_k: Tensor,
    far_q: Tensor,
    far_k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    rule: ClippedRule,
) -> Tensor:
    """All logits at once, given to attention as a bias on those of queries that are 0."""
    scale, wide = rule.scale or near_q.shape[-1] ** -0.5, wide_dtype(near_q)
    distance = (query_positions.unsqueeze(-1) - key_positions.unsqueeze(1)).unsqueeze(1)
    near, far = (
        _logits(q.to(wide) * scale, k.to(wide)) for q, k in ((near_q, near_k), (far_q, far_k))
    )
    logits = torch.where(distance < rule.clip, near, far)
    if rule.window:
        seen = (distance < rule.window) | (key_positions[:, None, None] < rule.first)
        logits = torch.where(seen, logits, torch.full_like(logits, float("-inf")))
    nothing = torch.zeros_like(near_q[..., :1]), torch.zeros_like(near_k[..., :1])
    return attention(*nothing, v, query_positions, key_positions, logits, scale=1.0)


def _logits(q: Tensor, k: Tensor) -> Tensor:
    """``[B, H, S, T]``; the heads of a group share their keys."""
    B, H, S, K = q.shape
    G = k.shape[1]
    by_group = q.reshape(B, G, H // G, S, K)
    return torch.matmul(by_group, k.transpose(-1, -2).unsqueeze(2)).flatten(1, 2)


class _Clipped(Function):
    """The fused attentions and their backward pass, to which the joint log-sum-exp is enough."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *operands, rule = given
        found = []
        for _, part, options in _parts(operands, rule):
            y, lse = _FORWARD(*part, **options)
            sees = _sees_any(part[3], part[4], options["window"]).unsqueeze(1)
            found.append((y, lse.masked_fill(~sees, -torch.inf)))
        total = finite(torch.stack([lse for _, lse in found]).logsumexp(0))
        shares = [torch.exp(lse - total).unsqueeze(-1) * y for y, lse in found]
        y = torch.stack(shares).sum(0).to(operands[0].dtype)
        ctx.save_for_backward(*operands, y, total)
        ctx.rule = rule
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *operands, y, total = ctx.saved_tensors
        found: list[Tensor | None] = [None] * len(_OPERANDS)
        needs = [True] * 3 + [False] * 4
        for names, part, options in _parts(operands, ctx.rule):
            gained = _BACKWARD(grad, *part, y, total, needs=needs, **options)
            for name, one in zip(names, gained[:3], strict=True):
                place = _OPERANDS.index(name)
                before = found[place]
                found[place] = one if before is None else before + one
        return (*found, None)


_OPERANDS = (
    "near_q", "near_k", "far_q", "far_k", "v", "start_k", "start_v",
    "start_positions", "query_positions", "key_positions",
)  # fmt: skip
_Part: TypeAlias = "tuple[tuple[str, str, str], tuple[Any, ...], dict[str, Any]]"


def _parts(operands: Sequence[Tensor], rule: ClippedRule) -> Iterator[_Part]:
    """The sets of keys that a query sees: within the clip, beyond it, at the start.

    Each as the names of its queries, keys and values, and the operands and options of attention:
    shifted positions say which keys they are.
    """
    given = dict(zip(_OPERANDS, operands, strict=True))
    queries = given["query_positions"]

    def part(q: str, k: str, v: str, shift: int, positions: str, window: int) -> _Part:
        places = torch.where(queries < shift, -1, queries - shift) if shift else queries
        used = (given[q], given[k], given[v], places, given[positions], None, None)
        return (q, k, v), used, {"scale": rule.scale, "causal": True, "window": window}

    yield part("near_q", "near_k", "v", 0, "key_positions", rule.clip)
    if rule.window != rule.clip:
        rest = rule.window and rule.window - rule.clip
        yield part("far_q", "far_k", "v", rule.clip, "key_positions", rest)
    if rule.window and rule.first:
        yield part("far_q", "start_k", "start_v", rule.window, "start_positions", 0)


def _sees_any(query_positions: Tensor, key_positions: Tensor, window: int) -> Tensor:
    """Whether a query ``[B, S]`` sees any key, without looking at every pair."""
    keys = key_positions.sort(1).values
    newest = torch.searchsorted(keys, query_positions.contiguous(), right=True)
    oldest = (query_positions - window).clamp(min=-1) if window else query_positions.clamp(max=-1)
    return newest > torch.searchsorted(keys, oldest.contiguous(), right=True)
