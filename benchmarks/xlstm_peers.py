"""The packages ``xlstm`` and ``mlstm_kernels`` as contestants: prompt, single tokens, training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["peer_large", "peer_stack"]

_MISSING = "the packages xlstm and mlstm_kernels are not installed: rows of peers are missing"


def peer_large(vocab: int, width: int, blocks: int, heads: int) -> Any:
    """The model of the second paper with its native kernels, or None."""
    try:
        _forget_this_folder()
        from xlstm.xlstm_large.model import xLSTMLarge, xLSTMLargeConfig
    except ImportError:
        print(_MISSING)
        return None
    config = xLSTMLargeConfig(
        embedding_dim=width,
        num_heads=heads,
        num_blocks=blocks,
        vocab_size=vocab,
        return_last_states=True,
        mode="inference",
        chunkwise_kernel="chunkwise--native_autograd",
        sequence_kernel="native_sequence__native",
        step_kernel="native",
    )
    return _Large(xLSTMLarge(config).eval())


def peer_stack(vocab: int, width: int, blocks: int, heads: int) -> Any:
    """The stack of the first paper with sLSTM blocks alone, or None."""
    try:
        _forget_this_folder()
        from xlstm import (
            FeedForwardConfig,
            sLSTMBlockConfig,
            sLSTMLayerConfig,
            xLSTMLMModel,
            xLSTMLMModelConfig,
        )
    except ImportError:
        print(_MISSING)
        return None
    block = sLSTMBlockConfig(
        slstm=sLSTMLayerConfig(backend="vanilla", num_heads=heads, conv1d_kernel_size=4),
        feedforward=FeedForwardConfig(proj_factor=1.3, act_fn="gelu"),
    )
    config = xLSTMLMModelConfig(
        vocab_size=vocab,
        embedding_dim=width,
        num_blocks=blocks,
        context_length=2048,
        slstm_block=block,
        slstm_at=list(range(blocks)),
    )
    model = xLSTMLMModel(config)
    model.reset_parameters()
    return _Stack(model.eval())


def _forget_this_folder() -> None:
    """A script's folder comes first on the path, and holds another ``xlstm``."""
    here = Path(__file__).parent
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != here.resolve()]


class _Large:
    """States are handed on; they are changed in place there."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def prefill(self, ids: Tensor) -> Any:
        return self.model(ids)

    def decode(self, ids: Tensor) -> None:
        state = None
        for t in range(ids.shape[1]):
            _, state = self.model(ids[:, t : t + 1], state)


class _Stack:
    def __init__(self, model: Any) -> None:
        self.model = model

    def prefill(self, ids: Tensor) -> Any:
        return self.model(ids)

    def decode(self, ids: Tensor) -> None:
        state: Any = {}
        for t in range(ids.shape[1]):
            _, state = self.model.step(ids[:, t : t + 1], state)

    def train(self, ids: Tensor) -> None:
        self.model.zero_grad()
        torch.logsumexp(self.model(ids), -1).mean().backward()
