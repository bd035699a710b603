"""Model families as data: what their weights are called here, in Hugging Face files and in GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ["FAMILIES", "GPT_NEOX", "LLAMA", "MISTRAL", "QWEN2", "QWEN3", "Family"]

Rows = Mapping[str, tuple[str, str]]

DIALECTS = ("huggingface", "gguf")
LLAMA_ROWS: Rows = {
    # here: (Hugging Face, GGUF); {i} is the layer, {a} its attention branch, {m} its MLP branch,
    # {p} weight and bias
    "embed.weight": ("model.embed_tokens.weight", "token_embd.weight"),
    "{a}.norm.weight": ("model.layers.{i}.input_layernorm.weight", "blk.{i}.attn_norm.weight"),
    "{a}.mixer.query.{p}": ("model.layers.{i}.self_attn.q_proj.{p}", "blk.{i}.attn_q.{p}"),
    "{a}.mixer.key.{p}": ("model.layers.{i}.self_attn.k_proj.{p}", "blk.{i}.attn_k.{p}"),
    "{a}.mixer.value.{p}": ("model.layers.{i}.self_attn.v_proj.{p}", "blk.{i}.attn_v.{p}"),
    "{a}.mixer.output.{p}": ("model.layers.{i}.self_attn.o_proj.{p}", "blk.{i}.attn_output.{p}"),
    "{m}.norm.weight": (
        "model.layers.{i}.post_attention_layernorm.weight",
        "blk.{i}.ffn_norm.weight",
    ),
    "{m}.mixer.gate.{p}": ("model.layers.{i}.mlp.gate_proj.{p}", "blk.{i}.ffn_gate.{p}"),
    "{m}.mixer.up.{p}": ("model.layers.{i}.mlp.up_proj.{p}", "blk.{i}.ffn_up.{p}"),
    "{m}.mixer.down.{p}": ("model.layers.{i}.mlp.down_proj.{p}", "blk.{i}.ffn_down.{p}"),
    "norm.weight": ("model.norm.weight", "output_norm.weight"),
    "head.weight": ("lm_head.weight", "output.weight"),
}
QWEN3_ROWS: Rows = {
    **LLAMA_ROWS,
    "{a}.mixer.q_norm.weight": (
        "model.layers.{i}.self_attn.q_norm.weight",
        "blk.{i}.attn_q_norm.weight",
    ),
    "{a}.mixer.k_norm.weight": (
        "model.layers.{i}.self_attn.k_norm.weight",
        "blk.{i}.attn_k_norm.weight",
    ),
}
# Query, key and value lie in one tensor: the name of a part is the tensor's and, in parentheses,
# the part's; see `fused`. GGUF files of this family are not read.
GPT_NEOX_ROWS: Rows = {
    ours: (theirs, "")
    for ours, theirs in {
        "embed.weight": "gpt_neox.embed_in.weight",
        "{a}.norm.{p}": "gpt_neox.layers.{i}.input_layernorm.{p}",
        "{a}.mixer.query.{p}": "gpt_neox.layers.{i}.attention.query_key_value.{p} (query)",
        "{a}.mixer.key.{p}": "gpt_neox.layers.{i}.attention.query_key_value.{p} (key)",
        "{a}.mixer.value.{p}": "gpt_neox.layers.{i}.attention.query_key_value.{p} (value)",
        "{a}.mixer.output.{p}": "gpt_neox.layers.{i}.attention.dense.{p}",
        "{m}.norm.{p}": "gpt_neox.layers.{i}.post_attention_layernorm.{p}",
        "{m}.mixer.up.{p}": "gpt_neox.layers.{i}.mlp.dense_h_to_4h.{p}",
        "{m}.mixer.down.{p}": "gpt_neox.layers.{i}.mlp.dense_4h_to_h.{p}",
        "norm.{p}": "gpt_neox.final_layer_norm.{p}",
        "head.weight": "lm_head.weight",
    }.items()
}


@dataclass(frozen=True)
class Family:
    """Models that share a layout of weights; a layer is one attention and one MLP branch.

    ``name`` is the model type of Hugging Face and the architecture of GGUF, ``model`` begins the
    names of the classes of transformers. ``renamed`` has former names of weights, ``buffers`` the
    endings of what old files hold besides weights.
    """

    name: str
    model: str
    rows: Rows
    renamed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    buffers: tuple[str, ...] = ("rotary_emb.inv_freq",)

    def names(self, layers: int, dialect: str, *, parallel: bool = False) -> dict[str, str]:
        """Foreign names by our names, biases and head included, present or not.

        ``parallel`` says that the two branches of a layer are one residual step.
        """
        column = DIALECTS.index(dialect)
        result = {}
        for ours, theirs in self.rows.items():
            for i in range(layers) if "{i}" in theirs[column] else (0,):
                for p in ("weight", "bias") if "{p}" in ours else ("",):
                    at = {"i": i, "p": p, **_branches(i, parallel)}
                    result[ours.format(**at)] = theirs[column].format(**at)
        return result


def _branches(layer: int, parallel: bool) -> dict[str, str]:
    """Where the attention and the MLP of a layer stand in our models."""
    if parallel:
        return {"a": f"steps.{layer}.branches.0", "m": f"steps.{layer}.branches.1"}
    return {"a": f"steps.{2 * layer}.branches.0", "m": f"steps.{2 * layer + 1}.branches.0"}


LLAMA = Family("llama", "Llama", LLAMA_ROWS)
MISTRAL = Family("mistral", "Mistral", LLAMA_ROWS)
QWEN2 = Family("qwen2", "Qwen2", LLAMA_ROWS)
QWEN3 = Family("qwen3", "Qwen3", QWEN3_ROWS)
GPT_NEOX = Family(
    "gpt_neox",
    "GPTNeoX",
    GPT_NEOX_ROWS,
    renamed=MappingProxyType({"embed_out.weight": "lm_head.weight"}),
    buffers=("rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"),
)
FAMILIES = {family.name: family for family in (LLAMA, MISTRAL, QWEN2, QWEN3, GPT_NEOX)}
