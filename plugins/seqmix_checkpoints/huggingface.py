"""Directories as Hugging Face's transformers writes them, with weights in safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from seqmix import registry
from seqmix.checkpoint import Checkpoint, CheckpointReader
from seqmix.config import ModelConfig
from seqmix.errors import CheckpointError
from seqmix.weights import Weights
from seqmix_checkpoints.decoder import LAYERS, expected_shapes
from seqmix_checkpoints.foreign_config import config_of, family_of
from seqmix_checkpoints.fused import split_fused
from seqmix_checkpoints.layouts import Family
from seqmix_checkpoints.safetensors_file import read_directory
from seqmix_checkpoints.settings import Settings, read_json
from seqmix_checkpoints.tensors import FileTensor, renamed
from seqmix_checkpoints.tokenizer import TextTokenizer, tokenizer_of_directory

__all__ = ["HuggingFaceReader"]

CONFIG_FILE = "config.json"


class HuggingFaceReader(CheckpointReader):
    """Reads ``config.json`` with ``model.safetensors`` or its shards."""

    name: ClassVar[str] = "huggingface"

    def matches(self, source: str) -> bool:
        """Whether this is a directory with a config.json that names a model type.

        A model type that is the name of a reader is left to that one.
        """
        path = Path(source) / CONFIG_FILE
        try:
            data = read_json(path)
        except CheckpointError:
            return False
        if data.get("model_type") in registry.names("checkpoints"):
            return False
        return "model_type" in data or "architectures" in data

    def read(self, source: str) -> Checkpoint:
        """Configuration, lazy weights and tokenizer of a directory."""
        folder = Path(source)
        data = read_json(folder / CONFIG_FILE)
        where = str(folder / CONFIG_FILE)
        family = family_of(data, where)
        tensors = read_directory(folder, family.buffers)
        layers = Settings(data, where).integer("num_hidden_layers")
        if layers > min(len(tensors), LAYERS):
            raise CheckpointError(
                f"{where}: num_hidden_layers is {layers}, the weights have {len(tensors)} tensors "
                f"in all, and a model at most {LAYERS} layers; configuration and weights are of "
                "different models"
            )
        config = config_of(data, family, folder.resolve().name, where, _generation_eos(folder))
        weights = _weights(folder, tensors, family, config)
        tokenizer: TextTokenizer | None = tokenizer_of_directory(folder)
        template = tokenizer.chat_template if tokenizer else None
        return Checkpoint(config, weights, tokenizer, template, source)

    def tokenizer(self, source: str) -> TextTokenizer | None:
        """That of ``tokenizer.json``, in the directory of any model."""
        folder = Path(source)
        return tokenizer_of_directory(folder) if folder.is_dir() else None


def _weights(
    folder: Path, tensors: dict[str, FileTensor], family: Family, config: ModelConfig
) -> Weights:
    """The tensors under our names, fused ones in parts."""
    parallel = len(config.steps()[0]) == 2
    layers = len(config.branches()) // 2
    heads = config.branches()[0].options["heads"]
    for old, new in family.renamed.items():
        if old in tensors and new not in tensors:
            tensors[new] = tensors.pop(old)

    def ignored(name: str) -> bool:
        repeated = config.tie_embeddings and name == "lm_head.weight"
        return repeated or name.endswith(family.buffers)

    return renamed(
        folder,
        split_fused(tensors, heads),
        family.names(layers, "huggingface", parallel=parallel),
        expected_shapes(config, folder),
        ignored,
    )


def _generation_eos(folder: Path) -> Any:
    path = folder / "generation_config.json"
    return read_json(path).get("eos_token_id") if path.is_file() else None
