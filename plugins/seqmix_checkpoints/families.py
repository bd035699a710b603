"""Model families as data: what their weights are called here, in Hugging Face files and in GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from seqmix.config import Kind, ModelConfig, NormConfig
from seqmix.dtypes import torch_dtype
from seqmix.errors import CheckpointError

__all__ = ["LLAMA", "Family", "LlamaSizes", "expected_shapes", "llama_config", "to_transformers"]

ROWS = {
    # here: (Hugging Face, GGUF); {i} is the layer, {a} its attention step, {m} its MLP step
    "embed.weight": ("model.embed_tokens.weight", "token_embd.weight"),
    "steps.{a}.branches.0.norm.weight": (
        "model.layers.{i}.input_layernorm.weight",
        "blk.{i}.attn_norm.weight",
    ),
    "steps.{a}.branches.0.mixer.query.{p}": (
        "model.layers.{i}.self_attn.q_proj.{p}",
        "blk.{i}.attn_q.{p}",
    ),
    "steps.{a}.branches.0.mixer.key.{p}": (
        "model.layers.{i}.self_attn.k_proj.{p}",
        "blk.{i}.attn_k.{p}",
    ),
    "steps.{a}.branches.0.mixer.value.{p}": (
        "model.layers.{i}.self_attn.v_proj.{p}",
        "blk.{i}.attn_v.{p}",
    ),
    "steps.{a}.branches.0.mixer.output.{p}": (
        "model.layers.{i}.self_attn.o_proj.{p}",
        "blk.{i}.attn_output.{p}",
    ),
    "steps.{m}.branches.0.norm.weight": (
        "model.layers.{i}.post_attention_layernorm.weight",
        "blk.{i}.ffn_norm.weight",
    ),
    "steps.{m}.branches.0.mixer.gate.{p}": (
        "model.layers.{i}.mlp.gate_proj.{p}",
        "blk.{i}.ffn_gate.{p}",
    ),
    "steps.{m}.branches.0.mixer.up.{p}": (
        "model.layers.{i}.mlp.up_proj.{p}",
        "blk.{i}.ffn_up.{p}",
    ),
    "steps.{m}.branches.0.mixer.down.{p}": (
        "model.layers.{i}.mlp.down_proj.{p}",
        "blk.{i}.ffn_down.{p}",
    ),
    "norm.weight": ("model.norm.weight", "output_norm.weight"),
    "head.weight": ("lm_head.weight", "output.weight"),
}
DIALECTS = ("huggingface", "gguf")


@dataclass(frozen=True)
class Family:
    """Models that share a layout of weights; a layer is one attention step and one MLP step."""

    name: str
    rows: Mapping[str, tuple[str, str]]

    def names(self, layers: int, dialect: str) -> dict[str, str]:
        """Foreign names by our names, biases and head included, present or not."""
        column = DIALECTS.index(dialect)
        result = {}
        for ours, theirs in self.rows.items():
            for i in range(layers) if "{i}" in theirs[column] else (0,):
                for p in ("weight", "bias") if "{p}" in ours else ("",):
                    at = {"i": i, "a": 2 * i, "m": 2 * i + 1, "p": p}
                    result[ours.format(**at)] = theirs[column].format(**at)
        return result


LLAMA = Family("llama", ROWS)


@dataclass(frozen=True)
class LlamaSizes:
    """What a Llama is made of, whatever its source calls it."""

    name: str
    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    eps: float
    context_length: int
    position: Kind
    tied: bool
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str = "f32"
    bos: int | None = None
    eos: tuple[int, ...] = ()


def llama_config(sizes: LlamaSizes) -> ModelConfig:
    """The configuration of a Llama."""
    attention = Kind(
        kind="attention",
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        bias=sizes.attention_bias,
        output_bias=sizes.attention_bias,
    )
    swiglu = Kind(kind="swiglu", hidden=sizes.hidden, bias=sizes.mlp_bias)
    return ModelConfig.model_validate(
        {
            "name": sizes.name,
            "vocab_size": sizes.vocab_size,
            "width": sizes.width,
            "context_length": sizes.context_length,
            "blocks": [{"repeat": sizes.layers, "steps": [attention, swiglu]}],
            "norm": NormConfig(kind="rms", eps=sizes.eps),
            "position": sizes.position,
            "head_dim": sizes.head_dim,
            "tie_embeddings": sizes.tied,
            "dtype": sizes.dtype,
            "bos": sizes.bos,
            "eos": list(sizes.eos),
        }
    )


def expected_shapes(config: ModelConfig, where: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every weight that a model of a configuration has; takes no memory."""
    from seqmix.model import Model

    try:
        with torch.device("meta"):
            model = Model(config.model_copy(update={"position": None}))
    except (RuntimeError, TypeError, OverflowError) as error:
        raise CheckpointError(
            f"{where}: no weights can have these sizes: {str(error).splitlines()[0]}"
        ) from error
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def to_transformers(transformers: Any, config: ModelConfig, model: nn.Module) -> Any:
    """The same Llama in transformers, in evaluation mode with eager attention, weights copied.

    ``transformers`` is the module, so that nothing here depends on it. CheckpointError when the
    model is no Llama.
    """
    attention, swiglu = _llama_branches(config)
    theirs = transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.width,
        num_hidden_layers=len(config.branches()) // 2,
        num_attention_heads=attention["heads"],
        num_key_value_heads=attention.get("kv_heads") or attention["heads"],
        head_dim=attention["head_dim"],
        intermediate_size=swiglu["hidden"],
        rms_norm_eps=config.norm.eps,
        max_position_embeddings=config.context_length,
        rope_parameters=_rope_parameters(config),
        attention_bias=bool(attention.get("bias")),
        mlp_bias=bool(swiglu.get("bias")),
        tie_word_embeddings=config.tie_embeddings,
        bos_token_id=config.bos,
        eos_token_id=config.eos[0] if config.eos else None,
        pad_token_id=None,
        attn_implementation="eager",
    )
    network = transformers.LlamaForCausalLM(theirs).to(torch_dtype(config.dtype)).eval()
    names = LLAMA.names(theirs.num_hidden_layers, "huggingface")
    state = {names[ours]: tensor for ours, tensor in model.state_dict().items()}
    if config.tie_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    network.load_state_dict(state, strict=True)
    return network


def _llama_branches(config: ModelConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    steps = config.steps()
    kinds = [[branch.kind for branch in step] for step in steps]
    same = len(steps) % 2 == 0 and all(step == steps[n % 2] for n, step in enumerate(steps))
    if not same or kinds[:2] != [["attention"], ["swiglu"]] or config.norm.kind != "rms":
        raise CheckpointError(
            f"model '{config.name}' is no Llama: expected equal pairs of one attention and one "
            "swiglu step with rms norms"
        )
    attention = steps[0][0].options
    if attention.get("window") or attention.get("scale"):
        raise CheckpointError(
            f"model '{config.name}' is no Llama: its attention has a window or a scale of its own"
        )
    return attention, steps[1][0].options


_ROPE_NAMES: dict[str, str] = {
    "theta": "rope_theta",
    "original_context_length": "original_max_position_embeddings",
}


def _rope_parameters(config: ModelConfig) -> dict[str, Any]:
    """Our position options in transformers' words."""
    position = config.position
    if position is None or position.kind not in ("rope", "yarn"):
        raise CheckpointError(
            f"model '{config.name}' is no Llama: expected position encoding rope or yarn, "
            f"found {None if position is None else position.kind}"
        )
    options = {k: v for k, v in position.options.items() if v is not None}
    if options.pop("layout", "half") != "half":
        raise CheckpointError(f"model '{config.name}': transformers has Llama's layout 'half' only")
    kind = "default" if position.kind == "rope" else "yarn"
    named = {_ROPE_NAMES.get(key, key): value for key, value in options.items()}
    return {"rope_type": kind, "rope_theta": 10000.0, **named}
