"""Weights of the large xLSTM models: their names, single or fused, and where they go here.

Two spellings: of the package ``xlstm`` and of transformers, which differ in the embedding alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise

from seqmix_xlstm.names import SAME, Row, piece
from seqmix_xlstm.stored import Shape

__all__ = ["HUGGING_FACE_EMBEDDING", "PACKAGE_EMBEDDING", "is_fused", "large_rows"]

PACKAGE_EMBEDDING = "embedding.weight"
HUGGING_FACE_EMBEDDING = "backbone.embeddings.weight"
LAYERS = {"mlstm_layer": 0, "ffn": 1}
"""Which of the two steps of a block a layer is."""
NORMS = {"norm_mlstm.weight": 0, "norm_ffn.weight": 1}
SINGLE = {
    "mlstm_layer.q.weight": "query.weight",
    "mlstm_layer.k.weight": "key.weight",
    "mlstm_layer.v.weight": "value.weight",
    "mlstm_layer.ogate_preact.weight": "output_gate.weight",
    "mlstm_layer.igate_preact.weight": "input_gate.weight",
    "mlstm_layer.igate_preact.bias": "input_gate.bias",
    "mlstm_layer.fgate_preact.weight": "forget_gate.weight",
    "mlstm_layer.fgate_preact.bias": "forget_gate.bias",
    "mlstm_layer.multihead_norm.weight": "norm.weight",
    "mlstm_layer.out_proj.weight": "output.weight",
    "ffn.proj_up_gate.weight": "gate.weight",
    "ffn.proj_up.weight": "up.weight",
    "ffn.proj_down.weight": "down.weight",
}
# Weight mode "fused": these lie in one tensor, one below the other.
FUSED = {
    "mlstm_layer.qkv_opreact.weight": (
        "query.weight",
        "key.weight",
        "value.weight",
        "output_gate.weight",
    ),
    "mlstm_layer.ifgate_preact.weight": ("input_gate.weight", "forget_gate.weight"),
    "mlstm_layer.ifgate_preact.bias": ("input_gate.bias", "forget_gate.bias"),
    "ffn.proj_up_gate_z.weight": ("gate.weight", "up.weight"),
}


def is_fused(names: Iterable[str]) -> bool:
    """Whether the tensors are those of weight mode "fused"."""
    return any(name.endswith(tuple(FUSED)) for name in names)


def large_rows(
    shapes: Mapping[str, Shape], blocks: int, *, embedding: str, fused: bool
) -> list[Row]:
    """A row for each of our weights; ``shapes`` are ours, by name."""
    rows = [
        Row("embed.weight", embedding, SAME),
        Row("norm.weight", "backbone.out_norm.weight", SAME),
        Row("head.weight", "lm_head.weight", SAME),
    ]
    for block in range(blocks):
        there = f"backbone.blocks.{block}."
        here = [f"steps.{2 * block + step}.branches.0." for step in (0, 1)]
        rows += [Row(f"{here[s]}norm.weight", there + name, SAME) for name, s in NORMS.items()]
        if fused:
            rows += _fused_rows(shapes, there, here)
        joined = {part for parts in FUSED.values() for part in parts} if fused else set()
        rows += [
            Row(f"{_mixer(here, theirs)}{ours}", there + theirs, SAME)
            for theirs, ours in SINGLE.items()
            if ours not in joined
        ]
    return rows


def _fused_rows(shapes: Mapping[str, Shape], there: str, here: list[str]) -> list[Row]:
    rows = []
    for theirs, parts in FUSED.items():
        ours = [_mixer(here, theirs) + part for part in parts]
        stops = [0, *accumulate(shapes[name][0] for name in ours)]
        rows += [
            Row(name, there + theirs, piece(start, stop, stops[-1]))
            for name, (start, stop) in zip(ours, pairwise(stops), strict=True)
        ]
    return rows


def _mixer(here: list[str], theirs: str) -> str:
    return f"{here[LAYERS[theirs.partition('.')[0]]]}mixer."
