"""The packages ``xlstm`` and ``mlstm_kernels`` as contestants: prompt, single tokens, training."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

__all__ = ["peer_large", "peer_stack"]

_MISSING = "the packages xlstm and mlstm_kernels are not installed: rows of peers are missing"


def peer_large(vocab: int, width: int, blocks: int, heads: int) -> Any:
    """The model of the second paper with its native kernels, or None."""
    try:
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

    def onnx_decode(self, threads: int) -> Callable[[Tensor], None] | None:
        """:meth:`decode` by torch's own export of one step, or None without onnxscript."""
        if importlib.util.find_spec("onnxscript") is None:
            print("onnxscript is not installed: no row of the peer's own export")
            return None
        token = torch.zeros(1, 1, dtype=torch.int64)
        with torch.no_grad():
            _, state = self.model(token)
        first = [part.clone() for block in state.values() for part in block]
        with TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = Path(folder) / "step.onnx"
            exported = torch.onnx.export(
                _Step(self.model).eval(), (token, *first), dynamo=True, verbose=False
            )
            if exported is None:
                raise RuntimeError("torch exported nothing")
            exported.save(path)
            session = quiet_session(path, threads)
        names = [entry.name for entry in session.get_inputs()]

        def decode(ids: Tensor) -> None:
            states = [torch.zeros_like(part).numpy() for part in first]
            for t in range(ids.shape[1]):
                given = [ids[:, t : t + 1].numpy(), *states]
                _, *states = session.run(None, dict(zip(names, given, strict=True)))

        return decode


class _Step(torch.nn.Module):
    """One token with the states as arguments and results, three for each block."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, *flat: Tensor) -> tuple[Tensor, ...]:
        blocks = {i: tuple(flat[3 * i : 3 * i + 3]) for i in range(len(flat) // 3)}
        logits, after = self.model(token, blocks)
        return (logits, *(part for i in range(len(blocks)) for part in after[i]))


def quiet_session(path: Path, threads: int) -> Any:
    """A session whose threads sleep between operators, as those of all contestants do."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


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
        torch.autograd.backward(torch.logsumexp(self.model(ids), -1).mean())
