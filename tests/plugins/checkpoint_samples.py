"""Tiny Llamas as other projects write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

SIZES: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 20,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


def foreign_weights(
    sizes: dict[str, Any] = SIZES, family: str = "llama"
) -> dict[str, torch.Tensor]:
    """Random weights under the names of transformers; ``family`` adds what Qwen models have."""
    torch.manual_seed(5)
    width, hidden, vocab = sizes["hidden_size"], sizes["intermediate_size"], sizes["vocab_size"]
    rows = sizes["num_attention_heads"] * sizes["head_dim"]
    kv = sizes["num_key_value_heads"] * sizes["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, width),
        "model.norm.weight": (width,),
    }
    for i in range(sizes["num_hidden_layers"]):
        at = f"model.layers.{i}"
        shapes |= {
            f"{at}.input_layernorm.weight": (width,),
            f"{at}.post_attention_layernorm.weight": (width,),
            f"{at}.self_attn.q_proj.weight": (rows, width),
            f"{at}.self_attn.k_proj.weight": (kv, width),
            f"{at}.self_attn.v_proj.weight": (kv, width),
            f"{at}.self_attn.o_proj.weight": (width, rows),
            f"{at}.mlp.gate_proj.weight": (hidden, width),
            f"{at}.mlp.up_proj.weight": (hidden, width),
            f"{at}.mlp.down_proj.weight": (width, hidden),
        }
        if family == "qwen2":
            for part, size in (("q", rows), ("k", kv), ("v", kv)):
                shapes[f"{at}.self_attn.{part}_proj.bias"] = (size,)
        if family == "qwen3":
            for part in ("q", "k"):
                shapes[f"{at}.self_attn.{part}_norm.weight"] = (sizes["head_dim"],)
    if not sizes["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, width)
    return {name: torch.randn(shape) * 0.3 for name, shape in shapes.items()}


def write_folder(
    folder: Path, weights: dict[str, torch.Tensor] | None = None, **config: Any
) -> Path:
    """A directory as transformers writes it; ``config`` replaces entries, None removes them."""
    folder.mkdir(exist_ok=True)
    data = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES, **config}
    data = {key: value for key, value in data.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(data), encoding="utf-8")
    save_file(foreign_weights() if weights is None else weights, folder / "model.safetensors")
    return folder


def interleave(weight: torch.Tensor, heads: int) -> np.ndarray[Any, Any]:
    """The permutation that converters to GGUF apply to query and key projections."""
    rows, *rest = weight.shape
    parts = weight.numpy().reshape(heads, 2, rows // heads // 2, *rest)
    return np.ascontiguousarray(parts.swapaxes(1, 2)).reshape(rows, *rest)


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """What GGUF calls a weight of transformers."""
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in fixed:
        return fixed[name]
    _, _, layer, rest = name.split(".", 3)
    part, _, leaf = rest.rpartition(".")
    return f"blk.{layer}.{GGUF_NAMES[part]}.{leaf}"


def write_gguf(
    path: Path,
    weights: dict[str, torch.Tensor],
    yarn: bool = False,
    pre: str = "smollm",
    metadata: dict[str, Any] | None = None,
    architecture: str = "llama",
    names: tuple[str, ...] = (),
) -> Path:
    """A GGUF file of the same model, with a byte-level tokenizer of 37 tokens.

    As its converter does it, queries and keys are permuted where the architecture is llama. Weights
    among ``names`` are called there what they are called here.
    """
    gguf = pytest.importorskip("gguf", reason="GGUF files need the package gguf")
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_context_length(128 if yarn else SIZES["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(SIZES["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    if architecture == "llama":
        writer.add_rope_dimension_count(SIZES["head_dim"])
    else:
        writer.add_key_length(SIZES["head_dim"])
        writer.add_value_length(SIZES["head_dim"])
    if yarn:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(2.0)
        writer.add_rope_scaling_orig_ctx_len(64)
    for key, value in (metadata or {}).items():
        kinds = {float: writer.add_float32, str: writer.add_string}
        kinds.get(type(value), writer.add_uint16)(key, value)
    add_tokenizer(writer, pre)
    for name, tensor in weights.items():
        heads = {"q_proj": 3, "k_proj": 1}.get(name.split(".")[-2], 0)
        permuted = heads and architecture == "llama"
        array = interleave(tensor, heads) if permuted else tensor.numpy()
        writer.add_tensor(name if name in names else gguf_name(name), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: Any, pre: str) -> None:
    """Lower-case letters, a space, one merge and two special tokens."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    tokens = ["<s>", "</s>", *letters, "Ġ", "th"]
    tokens += [f"<unused{n}>" for n in range(SIZES["vocab_size"] - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_merges(["t h"])
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{% for m in messages %}{{ bos_token }}{{ m['content'] }}{% endfor %}")
