"""Queries that each turn all keys by frequencies of their own: attention, and its backward pass.

Pairs are complex numbers, so that turning is one product. The turn of a key at position p is the
product of two from short tables, for ``p // 128`` and ``p % 128``: as many sines as queries times
``T / 128 + 128``, instead of queries times T. Keys are turned tile by tile, so that they stay in
the cache between the turn and the product with the queries.

B batch, G key heads, M query heads per key head, N queries, T keys, K key size, V value size,
R rotated size.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from seqmix.ops.attention_chunks import finite, visible_pairs, wide_dtype

__all__ = ["attend_own", "attend_own_backward", "own_part_size", "unit_turns"]

_ELEMENTS = 1 << 20
"""Entries of turned keys that are held at once: 4 MiB in float32."""
_LOGITS = 1 << 20
_QUERIES = 16
_FINE = 128


def own_part_size(q: Tensor, k: Tensor) -> int:
    """How many queries are taken at once."""
    return max(1, min(_QUERIES, _LOGITS // max(1, q.shape[0] * q.shape[1] * k.shape[2])))


def attend_own(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    inv_freq: Tensor,
    magnitude: Tensor,
    *,
    scale: float,
    window: int,
    interleaved: bool,
) -> tuple[Tensor, Tensor]:
    """Attention ``[B, H, N, V]`` and log-sum-exp ``[B, H, N]``; operands as the op has them."""
    part = _Part(q, k, query_positions, key_positions, inv_freq, magnitude, interleaved)
    logits = part.logits(scale, window)
    lse = finite(logits.logsumexp(-1))
    weights = torch.exp(logits - lse.unsqueeze(-1))
    y = _shared_product(weights, v.to(weights.dtype))
    return _heads_first(y).to(q.dtype), _heads_first(lse.unsqueeze(-1)).squeeze(-1)


def attend_own_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    inv_freq: Tensor,
    magnitude: Tensor,
    *,
    results: tuple[Tensor, Tensor, Tensor],
    scale: float,
    window: int,
    interleaved: bool,
) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, inv_freq, magnitude from the result's, the result and log-sum-exp."""
    grad, y, lse = results
    part = _Part(q, k, query_positions, key_positions, inv_freq, magnitude, interleaved)
    logits = part.logits(scale, window)
    G, wide = k.shape[1], part.wide
    dy, value = _grouped(grad.to(wide), G), v.to(wide)
    weights = torch.exp(logits - _grouped(lse.to(wide).unsqueeze(-1), G))
    dv = _sum_product(weights, dy)
    inner = (dy * _grouped(y.to(wide), G)).sum(-1, keepdim=True)
    slope = weights * (_shared_product(dy, value.transpose(-1, -2)) - inner) * scale
    dq, dk, turning, growing = part.backward(slope)
    return dq, dk, dv, turning.to(inv_freq.dtype), (growing / magnitude).to(magnitude.dtype)


def unit_turns(
    positions: Tensor,
    inv_freq: Tensor,
    origin: Tensor,
    magnitude: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Complex ``[B, N, T, R/2]``: ``exp(i (p - origin) f)`` of each position p, times magnitude.

    ``positions [B, T]`` (-1 counts as 0), ``inv_freq [B, N, R/2]`` float64, ``origin [B, N]``,
    ``magnitude [B, N]``; ``dtype`` is that of the real part.
    """
    places = positions.clamp(min=0)
    return _looked_up(places, *_turn_tables(places, inv_freq, origin, magnitude, dtype))


def _turn_tables(
    places: Tensor,
    inv_freq: Tensor,
    origin: Tensor,
    magnitude: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Turns of multiples of 128, seen from the origin, and of 0 to 127: ``[B, N, .., R/2]``."""
    steps = torch.arange(int(places.max()) // _FINE + 1, device=places.device) * _FINE
    starts = steps - origin.clamp(min=0).unsqueeze(-1)
    coarse = _units(starts.unsqueeze(-1) * inv_freq.unsqueeze(2), magnitude, dtype)
    within = torch.arange(_FINE, device=places.device).unsqueeze(-1)
    return coarse, _units(within * inv_freq.unsqueeze(2), None, dtype)


def _units(angles: Tensor, magnitude: Tensor | None, dtype: torch.dtype) -> Tensor:
    cos, sin = torch.cos(angles), torch.sin(angles)
    if magnitude is not None:
        cos, sin = cos * magnitude[..., None, None], sin * magnitude[..., None, None]
    return torch.complex(cos.to(dtype), sin.to(dtype))


def _looked_up(places: Tensor, coarse: Tensor, fine: Tensor) -> Tensor:
    rows = [
        coarse[b].index_select(1, row // _FINE).mul_(fine[b].index_select(1, row % _FINE))
        for b, row in enumerate(places)
    ]
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)


class _Part:
    """Some queries, and the keys as each of them sees them."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        query_positions: Tensor,
        key_positions: Tensor,
        inv_freq: Tensor,
        magnitude: Tensor,
        interleaved: bool,
    ) -> None:
        self.wide = wide_dtype(k)
        self.interleaved, self.half = interleaved, inv_freq.shape[2]
        self.positions = query_positions, key_positions
        self.places = key_positions.clamp(min=0)
        self.tables = _turn_tables(self.places, inv_freq, query_positions, magnitude, self.wide)
        R, grouped = 2 * self.half, _grouped(q.to(self.wide), k.shape[1])
        # [B, G, N, M, R] and [B, G, N, M, K - R], [B, G, T, R] and [B, G, T, K - R]
        self.query, self.rest = self._in_pairs(grouped[..., :R]).flatten(-2), grouped[..., R:]
        self.key, self.key_rest = k[..., :R], k[..., R:].to(self.wide)

    def tiles(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Places of some keys, their turns, and them turned, complex ``[B, G, N, tile, R/2]``.

        The last is overwritten by the next tile: fresh memory for each would cost more than the
        turn itself.
        """
        B, G, T, R = self.key.shape
        N = self.query.shape[2]
        size = max(1, min(T, _ELEMENTS // max(1, B * G * N * R)))
        memory = self.query.new_empty(B * G * (N + 1) * size * R)
        for start in range(0, T, size):
            tile = slice(start, min(start + size, T))
            rows = tile.stop - start
            scratch = memory[: B * G * rows * R].view(B, G, rows, self.half, 2)
            pairs = torch.view_as_complex(scratch.copy_(self._in_pairs(self.key[:, :, tile])))
            turns = _looked_up(self.places[:, tile], *self.tables).unsqueeze(1)
            after = memory[B * G * size * R :][: B * G * N * rows * R]
            turned = torch.view_as_complex(after.view(B, G, N, rows, self.half, 2))
            yield tile, turns, torch.mul(pairs.unsqueeze(2), turns, out=turned)

    def logits(self, scale: float, window: int) -> Tensor:
        """``[B, G, N, M, T]``, -inf where a query does not see a key."""
        query, T = self.query * scale, self.places.shape[1]
        scores = query.new_empty(*query.shape[:4], T)
        for tile, _, turned in self.tiles():
            key = torch.view_as_real(turned).flatten(-2)
            scores[..., tile] = torch.matmul(query, key.transpose(-1, -2))
        if self.rest.shape[-1]:
            scores += _shared_product(self.rest * scale, self.key_rest.transpose(-1, -2))
        visible = visible_pairs(*self.positions, True, window)
        return scores.masked_fill_(~visible[:, None, :, None], float("-inf"))

    def backward(self, slope: Tensor) -> tuple[Tensor, ...]:
        """Gradients from that of scaled logits: of q ``[B, H, N, K]``, of k ``[B, G, T, K]``.

        And what the logits gain per radian per token of each pair ``[B, N, R/2]``, and per relative
        growth of the magnitude ``[B, N]``.
        """
        (B, G, N), T = self.query.shape[:3], self.places.shape[1]
        queries, keys = self.positions
        dq, dk = torch.zeros_like(self.query), self.query.new_zeros(B, G, T, 2 * self.half)
        turning, growing = self.query.new_zeros(B, N, self.half), self.query.new_zeros(B, N)
        for tile, turns, turned in self.tiles():
            part = slope[..., tile]
            dq += torch.matmul(part, torch.view_as_real(turned).flatten(-2))
            gained = _paired(torch.matmul(part.transpose(-1, -2), self.query))
            slopes = torch.view_as_complex(gained.contiguous())
            back = torch.view_as_real((slopes * turns.conj()).sum(2))
            dk[:, :, tile] = self._from_pairs(back)
            # The real part of slope * turned is the gain by magnitude, the imaginary one by angle.
            gain = (slopes.conj() * turned).sum(1)
            distance = keys[:, None, tile] - queries.unsqueeze(-1)
            turning -= (gain.imag * distance.unsqueeze(-1).to(turning.dtype)).sum(2)
            growing += gain.real.sum((2, 3))
        q = torch.cat([self._from_pairs(_paired(dq)), _shared_product(slope, self.key_rest)], -1)
        k = torch.cat([dk, _sum_product(slope, self.rest)], -1)
        return _heads_first(q), k, turning, growing

    def _in_pairs(self, x: Tensor) -> Tensor:
        """``[..., R]`` as ``[..., R/2, 2]``."""
        if self.interleaved:
            return _paired(x)
        return x.reshape(*x.shape[:-1], 2, self.half).transpose(-1, -2)

    def _from_pairs(self, x: Tensor) -> Tensor:
        """The inverse."""
        return x.flatten(-2) if self.interleaved else x.transpose(-1, -2).flatten(-2)


def _grouped(x: Tensor, groups: int) -> Tensor:
    """``[B, H, N, L] -> [B, G, N, M, L]``."""
    B, H, N, L = x.shape
    return x.reshape(B, groups, H // groups, N, L).transpose(2, 3).contiguous()


def _heads_first(x: Tensor) -> Tensor:
    """``[B, G, N, M, L] -> [B, H, N, L]``."""
    return x.transpose(2, 3).flatten(1, 2)


def _shared_product(x: Tensor, y: Tensor) -> Tensor:
    """``x [B, G, N, M, I] @ y [B, G, I, J]``: one product for all queries of a group."""
    return torch.matmul(x.flatten(2, 3), y).view(*x.shape[:4], y.shape[3])


def _sum_product(x: Tensor, y: Tensor) -> Tensor:
    """The sum over N and M of the outer products of ``x [.., I]`` and ``y [.., J]``."""
    return torch.matmul(x.flatten(2, 3).transpose(-1, -2), y.flatten(2, 3))


def _paired(x: Tensor) -> Tensor:
    """Neighbours of ``[..., R]`` as ``[..., R/2, 2]``."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
