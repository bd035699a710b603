"""The interface of a position encoding; every method has a neutral default."""

from __future__ import annotations

from abc import ABC
from typing import Any, ClassVar, Literal

from pydantic import BaseModel
from torch import Tensor, nn

from seqmix.errors import ConfigError

__all__ = ["PositionEncoding"]


class PositionEncoding(nn.Module, ABC):
    """How a model knows where a token stands. Subclasses override what they use.

    An encoding belongs to the model and is shared by its layers. Static encodings cache rotated
    keys; those whose tables depend on the current length set ``caches_rotated_keys = False``.
    ``Config`` is the schema of the encoding's configuration; the encoding is built as
    ``cls(config, head_dim=...)``, or as ``cls(config, width=...)`` where ``built_for`` says so.
    """

    Config: ClassVar[type[BaseModel]]
    built_for: ClassVar[Literal["head_dim", "width"]] = "head_dim"
    """The size of the model that it works on: that of queries and keys, or that of embeddings."""
    api: ClassVar[tuple[int, int]] = (1, 0)
    caches_rotated_keys: bool = True
    attends: bool = False
    """Whether keys turn anew for every query, so that no rotated keys serve: see :meth:`attend`."""
    follows_length: ClassVar[bool] = False
    """Whether it stretches with the length by itself, so that extending it needs no factor."""
    splits: bool = True
    """Whether piece by piece is the same as at once: not where one scale holds for a whole call."""

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

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_positions: Tensor,
        key_positions: Tensor,
        tables: tuple[Tensor, ...],
        *,
        scale: float = 0.0,
        window: int = 0,
    ) -> Tensor:
        """Attention of an encoding that ``attends``; mixers reach it by ``Context.attend``.

        ``query [B, H, S, K]`` as :meth:`rotate` left it, ``key [B, G, T, K]`` and ``value`` as the
        state holds them, ``tables`` those of the queries; the result is ``[B, H, S, V]``.
        """
        raise ConfigError(
            f"position encoding {type(self).__name__} leaves attention to the mixer: "
            "ask its attribute 'attends' first"
        )

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """What is added to the attention logits, ``[B or 1, H or 1, S, T]``; None for nothing."""
        return None

    def logit_scale(self, context_length: Tensor) -> Tensor | float:
        """A factor on the attention logits on top of 1/sqrt(K); per row ``[B]`` or a number."""
        return 1.0

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Options that the conformance kit tries, for heads of 6; by default none are needed."""
        return [{}]
