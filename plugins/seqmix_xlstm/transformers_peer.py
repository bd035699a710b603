"""A large xLSTM in Hugging Face's transformers, as a contestant of ``seqmix bench``.

S tokens of a prompt, V vocabulary.
"""

from __future__ import annotations

import copy
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from seqmix.bench import Contestant
from seqmix.checkpoint import Checkpoint
from seqmix.errors import CheckpointError
from seqmix.model import Model
from seqmix_xlstm.hugging_face import to_hugging_face

__all__ = ["TransformersPeer"]


class TransformersPeer(Contestant):
    """The same weights in transformers, whose kernels of torch compute in the weights' type."""

    def __init__(self, checkpoint: Checkpoint, threads: int) -> None:
        """Write the model and read it there; CheckpointError for one that transformers has not."""
        try:
            import transformers
        except ImportError as error:
            raise CheckpointError(f"{error}; pip install transformers") from error
        with TemporaryDirectory() as folder:
            to_hugging_face(Model.from_checkpoint(checkpoint), folder)
            config = transformers.AutoConfig.from_pretrained(folder)
            # Its kernels would round to bfloat16.
            config.autocast_kernel_dtype = "float32"
            auto: Any = transformers.AutoModelForCausalLM
            self._network: Any = auto.from_pretrained(folder, config=config).eval()
        self._after: Any = None
        self._cache: Any = None

    def read(self, ids: Tensor) -> Tensor:
        """Read a prompt ``[1, S]``; logits ``[1, V]`` of its last token."""
        out = self._network(ids, use_cache=True)
        self._after = out.cache
        self._cache = None
        return self._last(out)

    def step(self, token: Tensor) -> Tensor:
        """Read one more token; the cache changes in place."""
        if self._cache is None:
            self.rewind()
        return self._last(self._network(token, cache=self._cache, use_cache=True))

    def rewind(self) -> None:
        """Go back to the states after the prompt."""
        self._cache = copy.deepcopy(self._after)

    def _last(self, out: Any) -> Tensor:
        logits: Tensor = out.logits[:, -1]
        return logits
