"""What the supported decoders are made of, whatever their source calls it, as a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from seqmix import registry
from seqmix.config import BlockConfig, Kind, ModelConfig, Step, build_config
from seqmix.errors import CheckpointError, ConfigError

__all__ = ["LAYERS", "DecoderSizes", "decoder_config", "expected_shapes", "validated"]

LAYERS = 2000
"""The deepest models have some two hundred; the shapes of a layer take a millisecond."""


@dataclass(frozen=True)
class DecoderSizes:
    """A decoder whose layers are one attention and one MLP branch each.

    ``windows`` has the attention window of each layer, None for all tokens. ``bias`` is that of
    queries, keys and values, ``mlp_bias`` that of every projection of the MLP. ``activation``
    belongs to a plain MLP; None stands for SwiGLU. In a ``parallel`` layer both branches see the
    same input.
    """

    name: str
    vocab_size: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    eps: float
    context_length: int
    position: Kind
    windows: tuple[int | None, ...]
    tied: bool
    norm: str = "rms"
    bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    mlp_bias: bool = False
    activation: str | None = None
    parallel: bool = False
    dtype: str = "f32"
    bos: int | None = None
    eos: tuple[int, ...] = ()


def decoder_config(sizes: DecoderSizes) -> ModelConfig:
    """The configuration of a decoder; equal neighbouring layers are one repeated block."""
    blocks = [
        BlockConfig(repeat=len(list(layers)), steps=_layer(sizes, window))
        for window, layers in groupby(sizes.windows)
    ]
    return build_config(
        ModelConfig,
        {
            "name": sizes.name,
            "vocab_size": sizes.vocab_size,
            "width": sizes.width,
            "context_length": sizes.context_length,
            "blocks": blocks,
            "norm": {"kind": sizes.norm, "eps": sizes.eps},
            "position": sizes.position,
            "head_dim": sizes.head_dim,
            "tie_embeddings": sizes.tied,
            "dtype": sizes.dtype,
            "bos": sizes.bos,
            "eos": list(sizes.eos),
        },
        f"model '{sizes.name}'",
    )


def validated(sizes: DecoderSizes, where: str) -> ModelConfig:
    """The configuration, with the options of its plugins checked as well."""
    if sizes.position.options.get("rotary_dim") is None and sizes.head_dim % 2:
        raise CheckpointError(f"{where}: the head size should be even, found {sizes.head_dim}")
    try:
        config = decoder_config(sizes)
        for kind in {kind.model_dump_json(): kind for kind in config.branches()}.values():
            build_config(registry.get("mixers", kind.kind).Config, kind.options, kind.kind)
        schema = registry.get("positions", sizes.position.kind).Config
        build_config(schema, sizes.position.options, sizes.position.kind)
    except (ConfigError, ValueError) as error:
        raise CheckpointError(f"{where}: is no usable configuration: {error}") from error
    return config


def expected_shapes(config: ModelConfig, where: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every weight that a model of a configuration has; takes no memory."""
    from seqmix.model import Model

    try:
        with torch.device("meta"):
            model = Model(config.model_copy(update={"position": None}))
    except (ConfigError, RuntimeError, TypeError, OverflowError) as error:
        raise CheckpointError(
            f"{where}: no weights can have these sizes: {str(error).splitlines()[0]}"
        ) from error
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _layer(sizes: DecoderSizes, window: int | None) -> list[Step]:
    attention = _attention(sizes, window)
    mlp = Kind(kind="swiglu", hidden=sizes.hidden, bias=sizes.mlp_bias)
    if sizes.activation is not None:
        options: dict[str, Any] = {"activation": sizes.activation, "bias": sizes.mlp_bias}
        mlp = Kind(kind="mlp", hidden=sizes.hidden, **options)
    return [[attention, mlp]] if sizes.parallel else [attention, mlp]


def _attention(sizes: DecoderSizes, window: int | None) -> Kind:
    options: dict[str, Any] = {} if window is None else {"window": window}
    if sizes.qk_norm:
        options |= {"qk_norm": True, "qk_norm_eps": sizes.eps}
    return Kind(
        kind="attention",
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        bias=sizes.bias,
        output_bias=sizes.output_bias,
        **options,
    )
