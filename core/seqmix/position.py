"""The interface of a position encoding; every method has a neutral default."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

from pydantic import BaseModel
from torch import Tensor, nn

__all__ = ["PositionEncoding"]


class PositionEncoding(nn.Module, ABC):
    """How a model knows where a token stands. Subclasses override what they use.

    An encoding belongs to the model and is shared by its layers. Static encodings cache rotated
    keys; those whose tables depend on the current length set ``caches_rotated_keys = False``.
    ``Config`` is the schema of the encoding's configuration; the encoding is built as
    ``cls(config, head_dim=...)``.
    """

    Config: ClassVar[type[BaseModel]]
    api: ClassVar[tuple[int, int]] = (1, 0)
    caches_rotated_keys: bool = True

    def embed(self, positions: Tensor) -> Tensor | None:
        """What is added to the token embeddings, ``[B, S, D]``; None for nothing.

        positions is int64 ``[B, S]``, -1 at padding.
        """
        return None

    def tables(self, positions: Tensor, context_length: Tensor) -> tuple[Tensor, ...]:
        """What :meth:`rotate_by` needs for these positions, computed once per model call.

        positions is int64 ``[B, S]`` (-1 at padding is treated as 0), context_length int64 ``[B]``.
        """
        return ()

    def rotate_by(self, x: Tensor, tables: tuple[Tensor, ...], role: str) -> Tensor:
        """Rotate ``x [B, H, S, K]``; role is ``"query"`` or ``"key"``."""
        return x

    def rotate(self, x: Tensor, positions: Tensor, context_length: Tensor, role: str) -> Tensor:
        """Rotate ``x [B, H, S, K]`` at any positions: :meth:`rotate_by` after :meth:`tables`."""
        return self.rotate_by(x, self.tables(positions, context_length), role)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """What is added to the attention logits, ``[B or 1, H or 1, S, T]``; None for nothing."""
        return None

    def logit_scale(self, context_length: Tensor) -> Tensor | float:
        """A factor on the attention logits on top of 1/sqrt(K); per row ``[B]`` or a number."""
        return 1.0
