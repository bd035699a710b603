"""Weights and states of the peers' xLSTM models by our names: what a checkpoint reader has to do.

Sizes: H heads, K size of a head, G the four gates in the order i, f, z, o.

The rules hold for the original package (blocks of mLSTM and sLSTM) and for the large models (the
same names there and, behind ``backbone.``, in transformers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "LARGE",
    "LARGE_MODEL",
    "STACK_FEED_FORWARD",
    "STACK_MLSTM",
    "STACK_SLSTM",
    "Rule",
    "mlstm_state",
    "renamed",
]


@dataclass(frozen=True)
class Rule:
    """Where the values of one peer's weight go, and how each is made; ``H`` is handed over."""

    targets: tuple[str, ...]
    make: Callable[[Tensor, int], tuple[Tensor, ...]] = lambda w, H: (w,)


def same(name: str) -> Rule:
    return Rule((name,))


def residual(name: str) -> Rule:
    """The original norms multiply by ``1 + weight``."""
    return Rule((name,), lambda w, H: (1 + w,))


def taps(name: str) -> Rule:
    """``[D, 1, W]`` of a convolution by groups."""
    return Rule((name,), lambda w, H: (w.squeeze(1),))


def halves(*names: str) -> Rule:
    return Rule(names, lambda w, H: tuple(w.chunk(len(names))))


def recurrent_vanilla(w: Tensor, H: int) -> tuple[Tensor, ...]:
    """``[H, G * out, in]`` of backend "vanilla" to ``[H, in, G, out]``.

    Backend "cuda" stores ``[H, in, G * out]``: there only the last axis is cut in two.
    """
    K = w.shape[2]
    return (w.reshape(H, 4, K, K).permute(0, 3, 1, 2),)


def bias_vanilla(w: Tensor, H: int) -> tuple[Tensor, ...]:
    """``[G * H * K]`` of backend "vanilla" to ``[H, G, K]``; "cuda" stores ``[H * G * K]``."""
    return (w.reshape(4, H, -1).transpose(0, 1),)


# blocks.{i}. of the original package, in a block of mLSTM: one step of ours.
STACK_MLSTM: dict[str, Rule] = {
    "xlstm_norm.weight": residual("norm.weight"),
    "xlstm.proj_up.weight": same("mixer.up.weight"),
    "xlstm.conv1d.conv.weight": taps("mixer.conv.weight"),
    "xlstm.conv1d.conv.bias": same("mixer.conv.bias"),
    "xlstm.q_proj.weight": same("mixer.query.weight"),
    "xlstm.k_proj.weight": same("mixer.key.weight"),
    "xlstm.v_proj.weight": same("mixer.value.weight"),
    "xlstm.mlstm_cell.igate.weight": same("mixer.input_gate.weight"),
    "xlstm.mlstm_cell.igate.bias": same("mixer.input_gate.bias"),
    "xlstm.mlstm_cell.fgate.weight": same("mixer.forget_gate.weight"),
    "xlstm.mlstm_cell.fgate.bias": same("mixer.forget_gate.bias"),
    "xlstm.mlstm_cell.outnorm.weight": residual("mixer.norm.weight"),
    "xlstm.learnable_skip": same("mixer.skip"),
    "xlstm.proj_down.weight": same("mixer.down.weight"),
}

# The same in a block of sLSTM: two steps of ours, this is the first.
STACK_SLSTM: dict[str, Rule] = {
    "xlstm_norm.weight": residual("norm.weight"),
    "xlstm.conv1d.conv.weight": taps("mixer.conv.weight"),
    "xlstm.conv1d.conv.bias": same("mixer.conv.bias"),
    # The peer's layer hands these two to each other's slot of its cell; ours have the names of
    # what they do. The cell's own R and bias are in the right order.
    "xlstm.fgate.weight": same("mixer.input_gate.weight"),
    "xlstm.igate.weight": same("mixer.forget_gate.weight"),
    "xlstm.zgate.weight": same("mixer.cell_input.weight"),
    "xlstm.ogate.weight": same("mixer.output_gate.weight"),
    "xlstm.slstm_cell._recurrent_kernel_": Rule(("mixer.recurrent",), recurrent_vanilla),
    "xlstm.slstm_cell._bias_": Rule(("mixer.bias",), bias_vanilla),
    "xlstm.group_norm.weight": residual("mixer.norm.weight"),
}

# ... and this the second.
STACK_FEED_FORWARD: dict[str, Rule] = {
    "ffn_norm.weight": residual("norm.weight"),
    "ffn.proj_up.weight": halves("mixer.gate.weight", "mixer.up.weight"),
    "ffn.proj_down.weight": same("mixer.down.weight"),
}

# backbone.blocks.{i}. of the large models: the first step of ours, and the second.
LARGE: tuple[dict[str, Rule], dict[str, Rule]] = (
    {
        "norm_mlstm.weight": same("norm.weight"),
        "mlstm_layer.q.weight": same("mixer.query.weight"),
        "mlstm_layer.k.weight": same("mixer.key.weight"),
        "mlstm_layer.v.weight": same("mixer.value.weight"),
        "mlstm_layer.ogate_preact.weight": same("mixer.output_gate.weight"),
        "mlstm_layer.igate_preact.weight": same("mixer.input_gate.weight"),
        "mlstm_layer.igate_preact.bias": same("mixer.input_gate.bias"),
        "mlstm_layer.fgate_preact.weight": same("mixer.forget_gate.weight"),
        "mlstm_layer.fgate_preact.bias": same("mixer.forget_gate.bias"),
        "mlstm_layer.multihead_norm.weight": same("mixer.norm.weight"),
        "mlstm_layer.out_proj.weight": same("mixer.output.weight"),
    },
    {
        "norm_ffn.weight": same("norm.weight"),
        "ffn.proj_up_gate.weight": same("mixer.gate.weight"),
        "ffn.proj_up.weight": same("mixer.up.weight"),
        "ffn.proj_down.weight": same("mixer.down.weight"),
    },
)

# The rest of a large model; transformers calls the first backbone.embeddings.weight.
LARGE_MODEL: dict[str, Rule] = {
    "embedding.weight": same("embed.weight"),
    "backbone.out_norm.weight": same("norm.weight"),
    "lm_head.weight": same("head.weight"),
}


def renamed(
    weights: Mapping[str, Tensor], prefix: str, rules: Mapping[str, Rule], target: str, heads: int
) -> dict[str, Tensor]:
    """The weights below ``prefix`` that the rules name, by our names below ``target``."""
    found = {}
    for name, rule in rules.items():
        parts = rule.make(weights[prefix + name], heads)
        found.update({target + t: part for t, part in zip(rule.targets, parts, strict=True)})
    return found


def mlstm_state(c: Tensor, n: Tensor, m: Tensor) -> dict[str, Tensor]:
    """Peers keep ``C [B, H, K, V]``, ``n [B, H, K]`` and ``m [B, H]``, some with axes of size 1."""
    n = n.reshape(c.shape[:3]) if n.numel() == c[..., 0].numel() else n
    return {"recurrent": torch.cat([c, n.unsqueeze(-1)], -1), "m": m.reshape(c.shape[:2])}
