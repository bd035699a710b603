"""Tiny models of transformers, one or more of each family, and the same weights here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqmix.checkpoint import resolve
from seqmix.model import Model

VOCAB = 41
SHARED: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
NEOX: dict[str, Any] = {
    **{k: v for k, v in SHARED.items() if k not in ("num_key_value_heads", "rope_parameters")},
    "num_attention_heads": 3,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 300.0,
        "partial_rotary_factor": 0.5,
    },
}
SLIDING = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
# The prefix of transformers' classes and what the configuration says; windows are shorter than
# the sequences, head sizes differ from width / heads where the family lets them.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("Mistral", {**SHARED, "sliding_window": 5}),
    "mistral-full": ("Mistral", {**SHARED, "sliding_window": None, "head_dim": 10}),
    "qwen2": ("Qwen2", {**SHARED, "tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2", {**SHARED, **SLIDING}),
    "qwen3": ("Qwen3", {**SHARED, "head_dim": 10}),
    "qwen3-window": ("Qwen3", {**SHARED, **SLIDING, "head_dim": 8, "attention_bias": True}),
    "neox": ("GPTNeoX", NEOX),
    "neox-sequential": (
        "GPTNeoX",
        {
            **NEOX,
            "use_parallel_residual": False,
            "hidden_act": "gelu_new",
            "attention_bias": False,
            "tie_word_embeddings": True,
        },
    ),
}


@dataclass(frozen=True)
class Pair:
    """The same weights here and in transformers."""

    ours: Model
    theirs: Any


def make_pair(variant: str, folder: Path, dtype: torch.dtype = torch.float32) -> Pair:
    """Random weights in transformers, saved and read back here."""
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    prefix, settings = VARIANTS[variant]
    config = getattr(transformers, f"{prefix}Config")(**settings)
    config._attn_implementation = "sdpa" if dtype == torch.float64 else "eager"
    torch.manual_seed(11)
    theirs = getattr(transformers, f"{prefix}ForCausalLM")(config).to(dtype).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, mean=0.5 * (parameter.ndim == 1), std=0.5)
    theirs.save_pretrained(folder)
    pair = Pair(Model.from_checkpoint(resolve(folder)).eval(), theirs)
    if dtype == torch.float64:
        compute_in_double(pair)
    return pair


def compute_in_double(pair: Pair) -> None:
    """Let transformers compute in float64 what it does in float32 whatever the model's type.

    These are RMS norms and rotary tables; its softmax is float64 already with ``sdpa``.
    """
    for module in pair.theirs.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _wide_norm(module)
        if type(module).__name__.endswith("RotaryEmbedding"):
            module.forward = _wide_tables(module)


def _wide_norm(norm: Any) -> Any:
    weight, eps = norm.weight, norm.variance_epsilon
    return lambda x: F.rms_norm(x, weight.shape, weight, eps)


def _wide_tables(rotary: Any) -> Any:
    rope = rotary.config.rope_parameters
    heads = rotary.config.num_attention_heads
    head_dim = getattr(rotary.config, "head_dim", None) or rotary.config.hidden_size // heads
    size = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
    frequencies = rope["rope_theta"] ** -exponents

    def tables(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.cat([position_ids[..., None] * frequencies] * 2, -1)
        return angles.cos(), angles.sin()

    return tables


def ids_of(batch: int, length: int, seed: int = 0) -> Tensor:
    """Random token ids, the same for the same arguments."""
    generator = torch.Generator().manual_seed(100 * seed + length)
    return torch.randint(0, VOCAB, (batch, length), generator=generator)


def positions_of(mask: Tensor) -> Tensor:
    """Positions of the tokens where ``mask [B, S]`` is 1, and -1 elsewhere."""
    return torch.where(mask == 1, mask.cumsum(1) - 1, -1)


def padded(lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Token ids ``[B, S]`` with padding on the left, and their mask."""
    longest = max(lengths)
    mask = torch.tensor([[0] * (longest - n) + [1] * n for n in lengths])
    return ids_of(len(lengths), longest) * mask, mask
