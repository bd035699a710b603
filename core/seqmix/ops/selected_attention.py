"""Softmax attention for selected queries only, with its backward pass.

B batch, H query heads, G key heads, S queries, N selected queries, T keys, K key size,
V value size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from seqmix.op import op
from seqmix.ops.attention import attention_backward, attention_forward
from seqmix_ir.ops import SelectedAttention
from seqmix_ir.types import TensorType

__all__ = ["selected_attention", "selected_backward", "selected_forward"]

Attend: TypeAlias = "Callable[..., tuple[Tensor, Tensor]]"
AttendBackward: TypeAlias = "Callable[..., Sequence[Tensor | None]]"


def selected_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    selected: Tensor,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    *,
    scale: float = 0.0,
    causal: bool = True,
    window: int = 0,
) -> Tensor:
    """:func:`~seqmix.ops.attention` of the queries ``selected [B, N]`` names: ``[B, H, S, V]``.

    ``selected`` holds indices (int64, 0 to S - 1) of queries, none of them twice in a row, and -1
    for none; all other queries give 0. Time and memory grow with N * T, not with S * T.
    """
    out: Tensor = _SELECTED_ATTENTION(
        q, k, v, query_positions, key_positions, selected, bias, sinks,
        scale=scale, causal=causal, window=window,
    )  # fmt: skip
    return out


def selected_forward(
    attend: Attend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    selected: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
    **attributes: Any,
) -> tuple[Tensor, Tensor]:
    """The result, and the log of the softmax denominators of the selected ``[B, H, N]``.

    ``attend`` is the forward function of attention, on whatever device.
    """
    rows, positions, part = _selected(q, query_positions, selected, bias)
    y, lse = attend(rows, k, v, positions, key_positions, part, sinks, **attributes)
    return _put(y, selected, q.shape[2]), lse


def _selected(
    q: Tensor, query_positions: Tensor, selected: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The queries, their positions (-1 for none), and their rows of the bias."""
    index = selected.clamp(min=0)
    positions = query_positions.gather(1, index).masked_fill(selected < 0, -1)
    return _rows(q, index), positions, _bias_rows(bias, index)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows ``index [B, N]`` of ``x [B, M, S, L]``, the same for each of M."""
    B, N = index.shape
    return x.gather(2, index.view(B, 1, N, 1).expand(B, x.shape[1], N, x.shape[3]))


def _bias_rows(bias: Tensor | None, index: Tensor) -> Tensor | None:
    if bias is None or bias.dim() < 2 or bias.shape[-2] == 1:
        return bias
    bias = bias[(None,) * (4 - bias.dim())]
    return _rows(bias.expand(index.shape[0], *bias.shape[1:]), index)


def _put(rows: Tensor, selected: Tensor, length: int) -> Tensor:
    """Zeros ``[B, M, S, L]`` with ``rows`` at the selected places; those for none go behind."""
    B, M, N, L = rows.shape
    out = rows.new_zeros(B, M, length + 1, L)
    places = selected.masked_fill(selected < 0, length).view(B, 1, N, 1).expand(B, M, N, L)
    return out.scatter_(2, places, rows)[:, :, :length].contiguous()


def selected_backward(
    attend: AttendBackward,
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor | None, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
    **attributes: Any,
) -> list[Tensor | None]:
    """That of attention, ``attend``, on the selected rows."""
    q, k, v, query_positions, key_positions, selected, bias, sinks = operands
    if q is None or query_positions is None or selected is None:
        raise TypeError("selected_attention: q, query_positions and selected are needed")
    y, lse = outputs
    S, index = q.shape[2], selected.clamp(min=0)
    rows, positions, part = _selected(q, query_positions, selected, bias)
    # A place for none holds the row of query 0, which must not pass anything on.
    grad = _rows(grads[0], index).masked_fill((selected < 0).view(len(index), 1, -1, 1), 0.0)
    found = attend(
        (grad,),
        (rows, k, v, positions, key_positions, part, sinks),
        (_rows(y, index), lse),
        (*needs[:5], *needs[6:]),
        **attributes,
    )
    dq, dk, dv, _, _, dbias, dsinks = found
    if bias is not None and dbias is not None and part is not bias:
        whole = _put(dbias, selected, S)
        dbias = whole.sum_to_size(bias[(None,) * (4 - bias.dim())].shape).reshape(bias.shape)
    return [
        None if dq is None else _put(dq, selected, S),
        dk, dv, None, None, None, dbias, dsinks,
    ]  # fmt: skip


def _saved_type(defn: SelectedAttention, q: TensorType, *others: TensorType | None) -> TensorType:
    selected = others[4]
    count = q.shape[2] if selected is None else selected.shape[1]
    return TensorType("f64" if q.dtype == "f64" else "f32", (*q.shape[:2], count))


_SELECTED_ATTENTION = op(
    SelectedAttention,
    eager=partial(selected_forward, attention_forward),
    backward=partial(selected_backward, attention_backward),
    saved={"log_sum_exp": _saved_type},
)
