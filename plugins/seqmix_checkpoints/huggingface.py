"""Directories as Hugging Face's transformers writes them, Llama models in safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from seqmix import registry
from seqmix.checkpoint import Checkpoint, CheckpointReader
from seqmix.config import ModelConfig, build_config
from seqmix.errors import CheckpointError, ConfigError
from seqmix_checkpoints.families import LLAMA, LlamaSizes, expected_shapes, llama_config
from seqmix_checkpoints.rope import number, read_rope
from seqmix_checkpoints.safetensors_file import read_directory
from seqmix_checkpoints.tensors import renamed
from seqmix_checkpoints.tokenizer import TextTokenizer, tokenizer_of_directory

__all__ = ["HuggingFaceReader", "config_of", "validated"]

CONFIG_FILE = "config.json"
DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64"}


class HuggingFaceReader(CheckpointReader):
    """Reads ``config.json`` with ``model.safetensors`` or its shards."""

    name: ClassVar[str] = "huggingface"

    def matches(self, source: str) -> bool:
        """Whether this is a directory with a config.json that names a model type."""
        path = Path(source) / CONFIG_FILE
        try:
            data = _read_json(path)
        except CheckpointError:
            return False
        return "model_type" in data or "architectures" in data

    def read(self, source: str) -> Checkpoint:
        """Configuration, lazy weights and tokenizer of a directory."""
        folder = Path(source)
        data = _read_json(folder / CONFIG_FILE)
        tensors = read_directory(folder)
        where = str(folder / CONFIG_FILE)
        layers = _integer(data, "num_hidden_layers", where)
        if layers > len(tensors):
            raise CheckpointError(
                f"{where}: num_hidden_layers is {layers}, the weights have {len(tensors)} tensors "
                "in all; configuration and weights are of different models"
            )
        config = config_of(data, folder.resolve().name, where, _generation_eos(folder))

        def ignored(name: str) -> bool:
            repeated = config.tie_embeddings and name == "lm_head.weight"
            return repeated or name.endswith("rotary_emb.inv_freq")

        weights = renamed(
            folder,
            tensors,
            LLAMA.names(layers, "huggingface"),
            expected_shapes(config, folder),
            ignored,
        )
        tokenizer: TextTokenizer | None = tokenizer_of_directory(folder)
        template = tokenizer.chat_template if tokenizer else None
        return Checkpoint(config, weights, tokenizer, template, source)


def config_of(data: Mapping[str, Any], name: str, where: str, eos: Any = None) -> ModelConfig:
    """A ``config.json`` as our configuration; ``eos`` goes before the one inside."""
    _require_llama(data, where)
    width, heads = (
        _integer(data, "hidden_size", where),
        _integer(data, "num_attention_heads", where),
    )
    optional = {"head_dim": width // heads, "num_key_value_heads": heads}
    optional |= {k: _integer(data, k, where) for k in optional if data.get(k) is not None}
    position, context_length = read_rope(data, where)
    sizes = LlamaSizes(
        name=name or "model",
        vocab_size=_integer(data, "vocab_size", where),
        width=width,
        layers=_integer(data, "num_hidden_layers", where),
        heads=heads,
        kv_heads=optional["num_key_value_heads"],
        head_dim=optional["head_dim"],
        hidden=_integer(data, "intermediate_size", where),
        eps=number(data.get("rms_norm_eps", 1e-6), "rms_norm_eps", where),
        context_length=context_length,
        position=position,
        tied=_flag(data, "tie_word_embeddings", where),
        attention_bias=_flag(data, "attention_bias", where),
        mlp_bias=_flag(data, "mlp_bias", where),
        dtype=_dtype(data, where),
        bos=next(iter(_ids(data.get("bos_token_id"), where)), None),
        eos=tuple(_ids(data.get("eos_token_id") if eos is None else eos, where)),
    )
    return validated(sizes, where)


def _dtype(data: Mapping[str, Any], where: str) -> str:
    dtype = str(data.get("dtype") or data.get("torch_dtype") or "float32").removeprefix("torch.")
    if dtype not in DTYPES:
        raise CheckpointError(
            f"{where}: dtype should be one of {', '.join(DTYPES)}, found {dtype!r}"
        )
    return DTYPES[dtype]


def validated(sizes: LlamaSizes, where: str) -> ModelConfig:
    """The configuration, with the options of its plugins checked as well."""
    if sizes.head_dim % 2:
        raise CheckpointError(f"{where}: the head size should be even, found {sizes.head_dim}")
    try:
        config = llama_config(sizes)
        for branch in config.blocks[0].steps:
            kinds = branch if isinstance(branch, list) else [branch]
            for kind in kinds:
                build_config(registry.get("mixers", kind.kind).Config, kind.options, kind.kind)
        if config.position is not None:
            schema = registry.get("positions", config.position.kind).Config
            build_config(schema, config.position.options, config.position.kind)
    except (ConfigError, ValueError) as error:
        raise CheckpointError(f"{where}: is no usable Llama configuration: {error}") from error
    return config


def _require_llama(data: Mapping[str, Any], where: str) -> None:
    named = data.get("architectures")
    kinds = [data.get("model_type"), *(named if isinstance(named, list) else [])]
    if not {"llama", "LlamaForCausalLM"} & {str(kind) for kind in kinds}:
        raise CheckpointError(
            f"{where}: model type {data.get('model_type')!r} is not supported; supported: llama"
        )
    if (activation := data.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise CheckpointError(f"{where}: hidden_act should be 'silu', found {activation!r}")
    if data.get("quantization_config"):
        raise CheckpointError(
            f"{where}: has a quantization_config; expected plain weights, "
            "fetch those or a GGUF file"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is no readable JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: should be an object, found {type(data).__name__}")
    return data


def _generation_eos(folder: Path) -> Any:
    path = folder / "generation_config.json"
    return _read_json(path).get("eos_token_id") if path.is_file() else None


def _integer(data: Mapping[str, Any], key: str, where: str) -> int:
    value = data.get(key)
    if type(value) is not int or value < 1:
        raise CheckpointError(f"{where}: {key} should be a whole number >= 1, found {value!r}")
    return value


def _flag(data: Mapping[str, Any], key: str, where: str) -> bool:
    value = data.get(key)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{where}: {key} should be true or false, found {value!r}")
    return bool(value)


def _ids(value: Any, where: str) -> list[int]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(type(i) is not int or i < 0 for i in ids):
        raise CheckpointError(f"{where}: token ids should be numbers >= 0, found {value!r}")
    return ids
