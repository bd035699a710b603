"""The two xLSTM model families as configurations.

Both are read, written and trained like any other model: ``Model(xlstm_large_config(...))``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from seqmix.config import ModelConfig, build_config
from seqmix.errors import ConfigError
from seqmix.model import state_specs
from seqmix_xlstm.initial import small_std, wang_std

__all__ = ["Dtype", "slstm_places", "xlstm_block_stack_config", "xlstm_large_config"]

Dtype: TypeAlias = Literal["f32", "bf16", "f16", "f64"]

_RATIO = re.compile(r"\s*\[?\s*(\d+)\s*:\s*(\d+)\s*\]?\s*")


def xlstm_block_stack_config(
    vocab_size: int,
    width: int,
    blocks: int,
    *,
    slstm_at: Sequence[int] | Literal["all"] = (),
    ratio: str | None = None,
    heads: int = 4,
    conv_taps: int = 4,
    proj_factor: float = 2.0,
    ffn_factor: float = 1.3,
    round_up_to: int = 64,
    clip: float = 10.0,
    context_length: int = 2048,
    tie_embeddings: bool = False,
    dtype: Dtype = "f32",
    name: str = "xlstm",
) -> ModelConfig:
    """The model of the first paper (Beck et al. 2024): a stack of mLSTM and sLSTM blocks.

    ``slstm_at`` are the blocks, from 0, that are sLSTM, each with a feed-forward branch behind it;
    ``ratio`` is the paper's [a:b] instead: of each a + b blocks the first a are mLSTM. With neither
    all are mLSTM. Inner widths are ``proj_factor`` (mLSTM) and ``ffn_factor`` (sLSTM) times the
    width, rounded up to ``round_up_to``. ``clip`` is :class:`~seqmix_xlstm.slstm_mixer.SLSTM`'s.
    ``context_length`` is what the model is meant for, not a limit. ConfigError for sizes that do
    not fit.
    """
    _check_sizes(width=width, blocks=blocks, heads=heads, round_up_to=round_up_to)
    _check_factor(ffn_factor)
    places = slstm_places(blocks, slstm_at, ratio)
    shared = {"heads": heads, "conv_taps": conv_taps, "blocks": blocks}
    matrix = {"proj_factor": proj_factor, "round_up_to": round_up_to}
    steps: list[dict[str, Any]] = []
    for block in range(blocks):
        if block not in places:
            steps.append({"kind": "mlstm_up", **shared, **matrix})
            continue
        hidden = math.ceil(ffn_factor * width / round_up_to) * round_up_to
        steps.append({"kind": "slstm", **shared, "block": block, "clip": clip})
        steps.append(_feed_forward(width, hidden, blocks, "gelu"))
    return _model(
        name=name,
        vocab_size=vocab_size,
        width=width,
        context_length=context_length,
        blocks=[{"steps": steps}],
        norm={"kind": "layer", "eps": 1e-5, "bias": False},
        tie_embeddings=tie_embeddings,
        init_std=small_std(width),
        dtype=dtype,
    )


def xlstm_large_config(
    vocab_size: int,
    width: int,
    blocks: int,
    *,
    heads: int = 8,
    qk_dim_factor: float = 0.5,
    v_dim_factor: float = 1.0,
    gate_soft_cap: float = 15.0,
    logit_soft_cap: float = 30.0,
    ffn_factor: float = 2.6667,
    ffn_round_up_to: int = 64,
    norm_eps: float = 1e-6,
    context_length: int = 8192,
    tie_embeddings: bool = False,
    dtype: Dtype = "f32",
    name: str = "xlstm-large",
) -> ModelConfig:
    """The model of the second paper (Beck et al. 2025): mLSTM and SwiGLU, each behind an RMS norm.

    xLSTM 7B is ``xlstm_large_config(50304, 4096, 32)``. The feed-forward width is ``ffn_factor``
    times the width, rounded up to ``ffn_round_up_to``. A soft cap of 0 is none. ``context_length``
    is what the model is meant for, not a limit. ConfigError for sizes that do not fit.
    """
    _check_sizes(width=width, blocks=blocks, heads=heads, ffn_round_up_to=ffn_round_up_to)
    _check_factor(ffn_factor)
    hidden = int((width * ffn_factor + ffn_round_up_to - 1) // ffn_round_up_to) * ffn_round_up_to
    mixer = {
        "kind": "mlstm",
        "heads": heads,
        "qk_dim_factor": qk_dim_factor,
        "v_dim_factor": v_dim_factor,
        "gate_soft_cap": gate_soft_cap,
        "norm_eps": norm_eps,
        "blocks": blocks,
    }
    return _model(
        name=name,
        vocab_size=vocab_size,
        width=width,
        context_length=context_length,
        blocks=[{"repeat": blocks, "steps": [mixer, _feed_forward(width, hidden, blocks, "silu")]}],
        norm={"kind": "rms", "eps": norm_eps},
        tie_embeddings=tie_embeddings,
        logit_soft_cap=logit_soft_cap,
        init_std=small_std(width),
        dtype=dtype,
    )


def slstm_places(
    blocks: int, slstm_at: Sequence[int] | Literal["all"], ratio: str | None
) -> frozenset[int]:
    """The blocks that are sLSTM; ConfigError for two answers, or one that does not fit."""
    if ratio is not None and len(slstm_at):
        raise ConfigError(
            f"ratio = {ratio!r} and slstm_at = {slstm_at!r} both say which blocks are sLSTM; "
            "give one of them"
        )
    if ratio is not None:
        return _by_ratio(blocks, ratio)
    if slstm_at == "all":
        return frozenset(range(blocks))
    if isinstance(slstm_at, str):
        raise ConfigError(f"slstm_at = {slstm_at!r}: expected block numbers, or 'all'")
    wrong = [place for place in slstm_at if not 0 <= place < blocks]
    if wrong:
        raise ConfigError(f"slstm_at names {wrong}, but the blocks are 0 to {blocks - 1}")
    return frozenset(slstm_at)


def _by_ratio(blocks: int, ratio: str) -> frozenset[int]:
    found = _RATIO.fullmatch(ratio)
    if found is None:
        raise ConfigError(f"ratio = {ratio!r}: expected 'a:b', such as '7:1'")
    matrix, scalar = map(int, found.groups())
    period = matrix + scalar
    if period == 0:
        raise ConfigError(f"ratio = {ratio!r} has no block at all")
    if matrix and scalar and blocks % period:
        raise ConfigError(
            f"ratio = {ratio!r} needs a multiple of {period} blocks, found {blocks}; change the "
            "number of blocks, or give slstm_at"
        )
    return frozenset(block for block in range(blocks) if block % period >= matrix)


def _feed_forward(width: int, hidden: int, blocks: int, activation: str) -> dict[str, Any]:
    return {
        "kind": "swiglu",
        "hidden": hidden,
        "activation": activation,
        "init_std": small_std(width),
        "down_init_std": wang_std(width, blocks),
    }


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"{name} is {size}; it must be at least 1")


def _check_factor(ffn_factor: float) -> None:
    if not 0 < ffn_factor < math.inf:
        raise ConfigError(f"ffn_factor is {ffn_factor}; it must be a number above 0")


def _model(**fields: Any) -> ModelConfig:
    """The configuration; its mixers are built once without memory, so that misfits show here."""
    config = build_config(ModelConfig, fields, f"model '{fields['name']}'")
    state_specs(config)
    return config
