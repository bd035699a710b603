"""The same model in Hugging Face's transformers, as a contestant of ``seqmix bench``.

S tokens of a prompt, V vocabulary.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor

from seqmix.bench import Contestant
from seqmix.checkpoint import Checkpoint
from seqmix.errors import CheckpointError
from seqmix.model import Model
from seqmix_checkpoints.families import to_transformers

__all__ = ["TransformersPeer"]


class TransformersPeer(Contestant):
    """A network of transformers with the weights of a checkpoint, and torch's own attention."""

    def __init__(self, checkpoint: Checkpoint, threads: int) -> None:
        """Copy the weights; CheckpointError without transformers, or for a model it has not."""
        try:
            import transformers
        except ImportError as error:
            raise CheckpointError(f"{error}; pip install transformers") from error
        model = Model.from_checkpoint(checkpoint)
        self._network = to_transformers(transformers, checkpoint.config, model)
        self._network.set_attn_implementation("sdpa")
        # Older versions of transformers call it by what is in it.
        known = inspect.signature(self._network.forward).parameters
        self._name = "cache" if "cache" in known else "past_key_values"
        self._cache: Any = None
        self._length = 0

    def read(self, ids: Tensor) -> Tensor:
        """Read a prompt ``[1, S]`` into a new cache; logits ``[1, V]`` of its last token."""
        self._length = ids.shape[1]
        out = self._network(ids, use_cache=True, logits_to_keep=1)
        self._cache = getattr(out, self._name)
        return self._last(out)

    def step(self, token: Tensor) -> Tensor:
        """Read one more token, which the cache grows by."""
        given = {self._name: self._cache}
        return self._last(self._network(token, **given, use_cache=True, logits_to_keep=1))

    def rewind(self) -> None:
        """Cut the cache back to the prompt."""
        # transformers takes a negative number as what to cut off.
        if beyond := self._cache.get_seq_length() - self._length:
            self._cache.crop(-beyond)

    def _last(self, out: Any) -> Tensor:
        logits: Tensor = out.logits[:, -1]
        return logits
