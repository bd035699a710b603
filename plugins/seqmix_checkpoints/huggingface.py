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
from seqmix_checkpoints.rope import read_rope
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
            folder, tensors, LLAMA.names(layers, "huggingface"), expected_shapes(config), ignored
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
    head_dim = data.get("head_dim") or width // heads
    position, context_length = read_rope(data, where)
    sizes = LlamaSizes(
        name=name or "model",
        vocab_size=_integer(data, "vocab_size", where),
        width=width,
        layers=_integer(data, "num_hidden_layers", where),
        heads=heads,
        kv_heads=data.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        hidden=_integer(data, "intermediate_size", where),
        eps=data.get("rms_norm_eps", 1e-6),
        context_length=context_length,
        position=position,
        tied=bool(data.get("tie_word_embeddings", False)),
        attention_bias=bool(data.get("attention_bias", False)),
        mlp_bias=bool(data.get("mlp_bias", False)),
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
    kinds = [data.get("model_type"), *(data.get("architectures") or [])]
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


def _ids(value: Any, where: str) -> list[int]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(type(i) is not int or i < 0 for i in ids):
        raise CheckpointError(f"{where}: token ids should be numbers >= 0, found {value!r}")
    return ids
