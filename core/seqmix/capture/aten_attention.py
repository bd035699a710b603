"""The rule for torch's scaled_dot_product_attention, as the attention op of the IR."""

from __future__ import annotations

import math

from seqmix.capture.aten import Call, aten
from seqmix_ir.dims import Size
from seqmix_ir.graph import Value
from seqmix_ir.ops import Attention, Expand, Iota, Reshape, Unsqueeze, Where
from seqmix_ir.ops.precision import wider_dtype

__all__: list[str] = []


@aten("scaled_dot_product_attention")
def _attention(
    c: Call,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """``q [.., H, S, K]``, ``k [.., G, T, K]``, ``v [.., G, T, V]``, ``mask`` to ``[.., H, S, T]``.

    Both sequences count from 0, so is_causal is the triangle from the upper left that torch means.
    """
    if dropout:
        raise c.refuse("dropout is on", "pass dropout_p=0.0 outside training")
    if scale == 0:
        raise c.refuse("a scale of 0 gives every key the same weight", "take the mean of v")
    lead, heads = tuple(c.shape[:-3]), c.shape[-3] if len(c.shape) > 2 else 1
    if len(c.shape) == 3 and not enable_gqa:
        # The third axis may be a batch of any size, of which no number of heads can be.
        lead, heads = (heads,), 1
        q, k, v = _one_head(c, q), _one_head(c, k), _one_head(c, v)
        mask = None if mask is None else _one_head(c, mask)
    batch: Size = math.prod(lead)
    q = _folded(c, q, lead, heads, batch)
    shared = enable_gqa and k.type.rank > 2
    k = _folded(c, k, lead, k.type.shape[-3] if shared else heads, batch)
    v = _folded(c, v, lead, v.type.shape[-3] if shared else heads, batch)
    bias = _bias(c, mask, q, lead, batch)
    defn = Attention(scale or 0.0, is_causal, 0)
    y = c.b(defn, q, k, v, _counted(c, q), _counted(c, k), bias, None)
    return y if y.type.shape == c.shape else c.b(Reshape(c.shape), y)


def _one_head(c: Call, x: Value) -> Value:
    return x if x.type.rank < 3 else c.b(Unsqueeze((1,)), x)


def _folded(c: Call, x: Value, lead: tuple[Size, ...], heads: Size, batch: Size) -> Value:
    """``x`` as ``[batch, heads, sequence, size]``, repeated where it was broadcast."""
    S, K = x.type.shape[-2:]
    wide = (*lead, heads, S, K)
    if x.type.shape != wide:
        x = c.b(Expand(wide), x)
    return x if len(wide) == 4 else c.b(Reshape((batch, heads, S, K)), x)


def _counted(c: Call, x: Value) -> Value:
    """Positions ``[batch, sequence]`` from 0 on."""
    batch, _, length, _ = x.type.shape
    return c.b(Expand((batch, length)), c.b(Iota(length)))


def _bias(
    c: Call, mask: Value | None, q: Value, lead: tuple[Size, ...], batch: Size
) -> Value | None:
    """The mask as what is added to the logits: -inf where a boolean one is false."""
    if mask is None:
        return None
    dtype = q.type.dtype
    if mask.type.dtype == "bool":
        mask = c.b(Where(), mask, c.scalar(0, dtype), c.scalar(-math.inf, dtype))
    elif mask.type.dtype not in (dtype, wider_dtype(dtype)):
        mask = c.cast(mask, dtype)
    return mask if len(lead) < 2 else _folded_mask(c, mask, lead, batch)


def _folded_mask(c: Call, mask: Value, lead: tuple[Size, ...], batch: Size) -> Value:
    """A mask of more than one leading axis as one of four axes."""
    rank = len(lead) + 3
    shape = (*[1] * (rank - mask.type.rank), *mask.type.shape)
    own, inner = shape[: len(lead)], shape[len(lead) :]
    if all(size == 1 for size in own):
        return c.b(Reshape((1, *inner)), mask)
    return c.b(Reshape((batch, *inner)), c.b(Expand((*lead, *inner)), mask))
