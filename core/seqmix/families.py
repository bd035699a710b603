"""Language models around any mixer, as configurations: GPT-2 style and GPT-NeoX style.

Both are read, written and trained like any other model: ``Model(gpt_config(...))``. What goes into
a layer as its mixer is the caller's: one mixer, several in turn, or one with another in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from seqmix.config import ModelConfig, build_config
from seqmix.errors import ConfigError

__all__ = ["Options", "gpt_config", "neox_config"]

Options: TypeAlias = Mapping[str, Any]
"""A mixer or an encoding with its options: ``{"kind": "attention", "heads": 12, ...}``."""

_GPT_MLP: Options = {"kind": "mlp", "activation": "gelu_tanh"}
_NEOX_MLP: Options = {"kind": "mlp", "activation": "gelu"}
_HIDDEN_FACTOR = 4


def gpt_config(
    vocab_size: int,
    width: int,
    layers: int,
    *,
    mixer: Options | Sequence[Options],
    replace: Options | Sequence[Options] = (),
    mlp: Options | None = _GPT_MLP,
    parallel: bool = False,
    context_length: int = 1024,
    position: Options | str = "learned",
    head_dim: int | None = None,
    norm: Options | None = None,
    tie_embeddings: bool = True,
    init_std: float = 0.02,
    dtype: Literal["f32", "bf16", "f16", "f64"] = "f32",
    name: str = "gpt",
) -> ModelConfig:
    """GPT-2 (Radford et al. 2019): per layer a mixer, then an MLP, each behind a layer norm.

    ``mixer`` is one for all layers, or a list that the layers take in turn. ``replace`` puts
    another into some of them, ``{"by": {"kind": "attention", ...}, "count": 3}`` (spread evenly)
    or ``{"by": ..., "at": [1, 4]}``, as hybrids of the Zoology paper (Arora et al. 2023, appendix
    C.2) do; see :class:`~seqmix.config.Replacement`. ``mlp`` is any branch, None for none; ``mlp``
    and ``swiglu`` have four times the width if ``hidden`` is not given. With ``parallel`` both
    branches read the same input, each behind its own norm. ``position`` is an encoding or its name,
    or "none"; a learned table has ``context_length`` rows. ConfigError for what does not fit.
    """
    mixers = _listed(name, "mixer", mixer)
    changes = _listed(name, "replace", replace)
    _check(name, mixers, replace, layers)
    if len(mixers) > 1:
        changes = _in_turn(mixers, layers)
    branch = {"branch": 0} if parallel and mlp is not None else {}
    return build_config(
        ModelConfig,
        {
            "name": name,
            "vocab_size": vocab_size,
            "width": width,
            "context_length": context_length,
            "blocks": [
                {
                    "repeat": layers,
                    "steps": _layer(mixers[0], _sized(mlp, width), parallel),
                    "replace": [{"step": 0, **branch, **change} for change in changes],
                }
            ],
            "norm": norm or {"kind": "layer", "eps": 1e-5},
            "position": _position(position, context_length),
            "head_dim": head_dim,
            "tie_embeddings": tie_embeddings,
            "init_std": init_std,
            "dtype": dtype,
        },
        f"model '{name}'",
    )


def neox_config(
    vocab_size: int,
    width: int,
    layers: int,
    *,
    mixer: Options | Sequence[Options],
    head_dim: int | None = None,
    rotary_dim: int | None = None,
    context_length: int = 2048,
    name: str = "neox",
    **more: Any,
) -> ModelConfig:
    """GPT-NeoX (Black et al. 2022): mixer and MLP in parallel, rotary positions, an untied head.

    ``rotary_dim`` of the ``head_dim`` entries of a query are rotated (a quarter of them in GPT-NeoX
    20B and Pythia). Without ``head_dim`` there are no positions, for mixers that need none.
    ``more`` are the other options of :func:`gpt_config`.
    """
    position: Options | str = "none"
    if head_dim is not None:
        position = {"kind": "rope", "rotary_dim": rotary_dim}
    elif rotary_dim is not None:
        raise ConfigError(
            f"model '{name}': rotary_dim = {rotary_dim} without head_dim, the size of the vectors "
            "that it is a part of; give both"
        )
    usual = {"mlp": _NEOX_MLP, "parallel": True, "position": position, "tie_embeddings": False}
    return gpt_config(
        vocab_size,
        width,
        layers,
        mixer=mixer,
        head_dim=head_dim,
        context_length=context_length,
        name=name,
        **{**usual, **more},
    )


def _listed(name: str, what: str, given: object) -> list[Options]:
    """One mapping or several as a list; ConfigError for anything else."""
    found = [given] if isinstance(given, Mapping) else given
    if not isinstance(found, list | tuple) or not all(isinstance(one, Mapping) for one in found):
        raise ConfigError(
            f"model '{name}': {what} should be a mapping of options, or a list of them, "
            f"found {given!r}"
        )
    return list(found)


def _check(name: str, mixers: list[Options], replace: object, layers: int) -> None:
    """ConfigError unless the layers and what goes into them fit together."""
    where = f"model '{name}': "
    if layers < 1:
        raise ConfigError(f"{where}layers = {layers}; expected at least 1")
    if not mixers:
        raise ConfigError(f"{where}mixer is an empty list; give one mixer, or several in turn")
    if len(mixers) > layers:
        raise ConfigError(
            f"{where}mixer lists {len(mixers)} for {layers} layers, so that some would never be "
            "used; leave them out, or add layers"
        )
    if len(mixers) > 1 and replace:
        raise ConfigError(
            f"{where}mixer lists {len(mixers)} that take turns, and replace says what stands in "
            "some layers too; give one mixer with replace, or the list alone"
        )


def _in_turn(mixers: list[Options], layers: int) -> list[Options]:
    """Every mixer but the first as a replacement of it."""
    turn = len(mixers)
    return [{"by": mixers[i], "at": list(range(i, layers, turn))} for i in range(1, turn)]


def _layer(mixer: Options, mlp: Options | None, parallel: bool) -> list[Any]:
    if mlp is None:
        return [mixer]
    return [[mixer, mlp]] if parallel else [mixer, mlp]


def _sized(mlp: Options | None, width: int) -> Options | None:
    if mlp is None or mlp.get("kind") not in ("mlp", "swiglu"):
        return mlp
    return {"hidden": _HIDDEN_FACTOR * width, **mlp}


def _position(position: Options | str, context_length: int) -> Options | None:
    if position == "none":
        return None
    if position == "learned":
        return {"kind": "learned", "max_positions": context_length}
    return {"kind": position} if isinstance(position, str) else position
