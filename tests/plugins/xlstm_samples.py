"""Small xLSTM checkpoints as other projects write them: real peers' weights from golden files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

GOLDEN = Path(__file__).parent.parent / "golden" / "xlstm"
LARGE_OPTIONS: dict[str, Any] = {
    "embedding_dim": 32,
    "num_heads": 2,
    "num_blocks": 2,
    "vocab_size": 29,
    "ffn_round_up_to_multiple_of": 16,
    "chunkwise_kernel": "chunkwise--native_autograd",
    "mode": "inference",
}
HUGGING_FACE: dict[str, Any] = {
    "model_type": "xlstm",
    "architectures": ["xLSTMForCausalLM"],
    "dtype": "float32",
    "vocab_size": 29,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_heads": 2,
    "ffn_round_up_to_multiple_of": 16,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "transformers_version": "5.24.0",
    "id2label": {"0": "a"},
}
STACK_OPTIONS: dict[str, Any] = {
    "mlstm_block": {"mlstm": {"num_heads": 2, "round_proj_up_to_multiple_of": 16}},
    "slstm_block": {
        "slstm": {"num_heads": 2, "backend": "vanilla"},
        "feedforward": {"round_proj_up_to_multiple_of": 16},
    },
    "num_blocks": 2,
    "embedding_dim": 32,
    "slstm_at": [1],
}
RECURRENT = "blocks.1.xlstm.slstm_cell._recurrent_kernel_"
BIAS = "blocks.1.xlstm.slstm_cell._bias_"


def golden(name: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    with np.load(GOLDEN / f"{name}.npz") as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file.files}
    return {key: t.to(dtype) if t.is_floating_point() else t.long() for key, t in arrays.items()}


def weights_in(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key[2:]: t for key, t in arrays.items() if key.startswith("w.")}


def large_weights(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return weights_in(golden("xlstm_large", dtype))


def fused(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weight mode "fused": queries, keys, values and output gates in one tensor, and so on."""
    groups = {
        "mlstm_layer.qkv_opreact.weight": [
            f"mlstm_layer.{part}.weight" for part in ("q", "k", "v", "ogate_preact")
        ],
        "mlstm_layer.ifgate_preact.weight": [f"mlstm_layer.{g}gate_preact.weight" for g in "if"],
        "mlstm_layer.ifgate_preact.bias": [f"mlstm_layer.{g}gate_preact.bias" for g in "if"],
        "ffn.proj_up_gate_z.weight": ["ffn.proj_up_gate.weight", "ffn.proj_up.weight"],
    }
    result = dict(weights)
    for block in range(2):
        at = f"backbone.blocks.{block}."
        for whole, parts in groups.items():
            result[at + whole] = torch.cat([result.pop(at + part) for part in parts])
    return result


def hugging_face_weights(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    weights = large_weights(dtype)
    weights["backbone.embeddings.weight"] = weights.pop("embedding.weight")
    return weights


def stack_weights(prefix: str = "xlstm_block_stack.", vocab: int = 48) -> dict[str, Tensor]:
    """The golden stack as a language model whose tokens are the golden input, one by one."""
    arrays = golden("xlstm_block_stack")
    weights = {prefix + name: t for name, t in weights_in(arrays).items()}
    if prefix:
        weights["token_embedding.weight"] = arrays["x"].reshape(vocab, 32)
        weights["lm_head.weight"] = torch.eye(vocab, 32)
    return weights


def cuda_layout(weights: dict[str, Tensor], heads: int = 2) -> dict[str, Tensor]:
    """R ``[H, K, 4 K]`` and a bias head by head, from those of backend "vanilla"."""
    result = dict(weights)
    for name, w in weights.items():
        if name.endswith("_recurrent_kernel_"):
            size = w.shape[2]
            by_gate = w.reshape(heads, 4, size, size)
            result[name] = by_gate.permute(0, 3, 1, 2).reshape(heads, size, 4 * size).contiguous()
        if name.endswith("slstm_cell._bias_"):
            result[name] = w.reshape(4, heads, -1).transpose(0, 1).reshape(-1).contiguous()
    return result


def write_hugging_face(
    folder: Path, weights: dict[str, Tensor] | None = None, shards: int = 1, **config: Any
) -> Path:
    """A directory of transformers; ``config`` replaces entries, ... removes them."""
    folder.mkdir(exist_ok=True)
    data = {k: v for k, v in {**HUGGING_FACE, **config}.items() if v is not ...}
    (folder / "config.json").write_text(json.dumps(data), encoding="utf-8")
    weights = hugging_face_weights() if weights is None else weights
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return folder
    places: dict[str, str] = {}
    for number in range(shards):
        part = dict(list(weights.items())[number::shards])
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        save_file(part, folder / file)
        places |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def nested(options: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of options with one of them replaced, ``path`` being its keys with points."""
    key, _, rest = path.partition(".")
    if not rest:
        return {**options, key: value}
    return {**options, key: nested(options.get(key) or {}, rest, value)}
