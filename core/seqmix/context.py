"""What a branch may need besides x: positions, token ids, padding, and the encoding's tables.

Made once per model call; everything in it is a tensor derived from the arguments, so it survives
capture and keeps the purity law.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from seqmix.position import PositionEncoding

__all__ = ["Context", "valid_last"]


class Context:
    """The arguments that all branches of one call share.

    Attributes:
        positions: int64 ``[B, S]``, -1 where the token is padding.
        input_ids: int64 ``[B, S]`` or None when the model was called on embeddings.
        valid: bool ``[B, S]``, True where the token is real.
        context_length: int64 ``[B]``, tokens so far in each row: past and new, padding excluded.
        encoding: the model's position encoding, or None.
        aux_losses: scalars that training adds to the loss (learned selection).

    """

    def __init__(
        self,
        positions: Tensor,
        *,
        input_ids: Tensor | None = None,
        encoding: PositionEncoding | None = None,
    ) -> None:
        """Derive the masks and the context length from ``positions``."""
        self.positions = positions
        self.input_ids = input_ids
        self.encoding = encoding
        self.valid = positions >= 0
        self.context_length = positions.amax(dim=1) + 1
        self.aux_losses: list[Tensor] = []
        self._padded: bool | None = None
        self._order: tuple[Tensor, Tensor] | None = None
        self._tables: tuple[Tensor, ...] | None = None

    @property
    def may_be_padded(self) -> bool:
        """Whether there may be padding; where it is costly to tell, the answer is True.

        Eager torch on a CPU looks once per call: moving tokens and masking them can cost more than
        what is done to them. A captured graph serves both, and a GPU would have to be waited for.
        """
        if self._padded is None:
            looks = self.valid.device.type == "cpu" and not torch.compiler.is_compiling()
            self._padded = not (looks and bool(self.valid.all()))
        return self._padded

    def rotate(self, x: Tensor, role: str) -> Tensor:
        """Apply the encoding to queries or keys ``[B, H, S, K]`` of the new tokens.

        The encoding's tables are computed at the first use and shared by all layers.
        """
        if self.encoding is None:
            return x
        return self.encoding.rotate_by(x, self._encoding_tables(self.encoding), role)

    def attend(
        self,
        query: Tensor,
        positions: Tensor,
        key: Tensor,
        value: Tensor,
        key_positions: Tensor,
        *,
        scale: float = 0.0,
        window: int = 0,
    ) -> Tensor | None:
        """Attention by the encoding itself, ``[B, H, N, V]``; None when that is up to the mixer.

        ``query [B, H, N, K]`` at ``positions [B, N]`` is rotated, which may have left it as it is;
        ``key [B, G, T, K]`` and ``value`` are the state's.
        """
        encoding = self.encoding
        if encoding is None or not encoding.attends:
            return None
        new = positions is self.positions
        tables = (
            self._encoding_tables(encoding)
            if new
            else encoding.tables(positions, self.context_length)
        )
        return encoding.attend(
            query, key, value, positions, key_positions, tables, scale=scale, window=window
        )

    def _encoding_tables(self, encoding: PositionEncoding) -> tuple[Tensor, ...]:
        if self._tables is None:
            self._tables = encoding.tables(self.positions, self.context_length)
        return self._tables

    def compact(self, x: Tensor) -> Tensor:
        """Move the valid tokens of ``x [B, S, D]`` to the right end of each row, order kept.

        Padding goes to the left end; :meth:`scatter_back` is the inverse.
        """
        if not self.may_be_padded:
            return x
        order, _ = self._permutation()
        return torch.gather(x, 1, order.unsqueeze(-1).expand_as(x))

    def scatter_back(self, x: Tensor) -> Tensor:
        """Undo :meth:`compact` on ``x [B, S, D]``, with 0 at padding."""
        if not self.may_be_padded:
            return x
        _, slot = self._permutation()
        back = torch.gather(x, 1, slot.unsqueeze(-1).expand_as(x))
        return torch.where(self.valid.unsqueeze(-1), back, torch.zeros_like(back))

    def prepend(self, tail: Tensor, x: Tensor) -> Tensor:
        """Join a history ``tail [B, W, D]`` and a compacted ``x [B, S, D]`` to ``[B, W + S, D]``.

        The padding that :meth:`compact` left in front of ``x`` gives way to the tail, which stands
        directly before the first valid token of each row. In front of the tail its first row is
        repeated, so a valid token may be joined with W rows before it and no more: a history that
        is read further back needs zeros there.
        """
        joined = torch.cat([tail, x], dim=1)
        if not self.may_be_padded:
            return joined
        slots = torch.arange(joined.shape[1], device=x.device).unsqueeze(0)
        padding = (~self.valid).sum(dim=1, keepdim=True)
        moved = (slots - padding).clamp(min=0)
        index = torch.where(slots < padding + tail.shape[1], moved, slots)
        return torch.gather(joined, 1, index.unsqueeze(-1).expand_as(joined))

    def _permutation(self) -> tuple[Tensor, Tensor]:
        """``(order, slot)``, both int64 ``[B, S]``: source of each slot, and slot of each token."""
        if self._order is None:
            self._order = valid_last(self.valid)
        return self._order


def valid_last(valid: Tensor) -> tuple[Tensor, Tensor]:
    """The permutation that moves the true entries of ``valid [B, N]`` to the right end, in order.

    ``(order, slot)``, both int64 ``[B, N]``: the source of each slot, and the slot of each entry.
    """
    ones = valid.to(torch.int64)
    zeros = 1 - ones
    total = zeros.sum(dim=1, keepdim=True)
    slot = torch.where(valid, total + ones.cumsum(1) - 1, zeros.cumsum(1) - 1)
    index = torch.arange(valid.shape[1], device=valid.device).expand_as(slot)
    return torch.zeros_like(slot).scatter(1, slot, index), slot
