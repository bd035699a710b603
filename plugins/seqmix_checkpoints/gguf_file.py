"""GGUF files: weights are dequantized one by one when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from seqmix.checkpoint import Checkpoint, CheckpointReader
from seqmix.errors import CheckpointError
from seqmix_checkpoints.chat import INSTALL
from seqmix_checkpoints.decoder import expected_shapes
from seqmix_checkpoints.gguf_config import Metadata, config_of, family_of
from seqmix_checkpoints.gguf_header import GGUFHeader, TensorPlace, read_header
from seqmix_checkpoints.layouts import LLAMA
from seqmix_checkpoints.tensors import FileTensor, read_bytes, renamed
from seqmix_checkpoints.tokenizer import TextTokenizer, byte_pair_tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["GGUFReader", "half_layout"]

CONTROL, USER_DEFINED = 3, 4
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""They are part of the configuration here."""
MOST_PAIRS = 1 << 16


class GGUFReader(CheckpointReader):
    """Reads one ``.gguf`` file."""

    name: ClassVar[str] = "gguf"

    def matches(self, source: str) -> bool:
        """Whether this is a file with the ending ``.gguf``."""
        return source.lower().endswith(".gguf") and Path(source).is_file()

    def read(self, source: str) -> Checkpoint:
        """Configuration, lazy weights and tokenizer of a file."""
        path = Path(source)
        header = read_header(path)
        family = family_of(header)
        meta = Metadata(header, family)
        tensors = {name: _tensor(header, place) for name, place in header.tensors.items()}
        config = config_of(header, meta, partial(_numbers, tensors))
        if family is LLAMA:
            _undo_permutation(tensors, meta)

        def ignored(name: str) -> bool:
            repeated = config.tie_embeddings and name == "output.weight"
            return repeated or name in ROPE_TENSORS

        names = family.names(meta.integer("{a}.block_count"), "gguf")
        weights = renamed(path, tensors, names, expected_shapes(config, path), ignored)
        tokenizer = _tokenizer(meta)
        template = tokenizer.chat_template if tokenizer else None
        return Checkpoint(config, weights, tokenizer, template, source)


def half_layout(heads: int) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Rows of a projection from pairs (2i, 2i + 1), as GGUF has them, to pairs (i, i + K/2).

    Nothing raises when this is forgotten or done with the wrong number of heads: the model just
    predicts badly.
    """

    def change(weight: NDArray[Any]) -> NDArray[Any]:
        rows, rest = weight.shape[0], weight.shape[1:]
        pairs = weight.reshape(heads, rows // heads // 2, 2, *rest)
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)

    change.__name__ = f"half_layout_{heads}"
    return change


def _numbers(tensors: Mapping[str, FileTensor], name: str) -> list[float] | None:
    """A small tensor as shortest decimals that mean its float32 numbers."""
    if name not in tensors:
        return None
    if math.prod(tensors[name].shape) > MOST_PAIRS:
        raise CheckpointError(
            f"{tensors[name].path}: tensor '{name}' should have a number per rotated pair, "
            f"found {list(tensors[name].shape)}"
        )
    return [float(str(value)) for value in tensors[name]().reshape(-1)]


def _tensor(header: GGUFHeader, place: TensorPlace) -> FileTensor:
    """The lazy loader of a tensor, once its bytes are known to be in the file."""
    quants, constants = _gguf()
    where = f"{header.path}: tensor '{place.name}'"
    try:
        kind = constants.GGMLQuantizationType(place.kind)
        block, width = constants.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError) as error:
        raise CheckpointError(
            f"{where} has the unknown quantization {place.kind}; update the package gguf"
        ) from error
    if not place.shape or place.shape[-1] % block:
        raise CheckpointError(
            f"{where} {list(place.shape)} should have rows of a multiple of {block} for {kind.name}"
        )
    row = place.shape[-1] // block * width
    count = math.prod(place.shape[:-1]) * row
    if place.start + count > header.size:
        raise CheckpointError(
            f"{where} should end at byte {place.start + count}, the file ends at {header.size}; "
            "it is truncated, fetch it again"
        )

    def load() -> NDArray[Any]:
        data = read_bytes(header.path, place.name, place.start, count)
        try:
            values = quants.dequantize(data.reshape(*place.shape[:-1], row), kind)
        except (NotImplementedError, ValueError) as error:
            raise CheckpointError(
                f"{where} cannot be dequantized from {kind.name}: {error}"
            ) from error
        return np.asarray(values, dtype=np.float32).reshape(place.shape)

    return FileTensor(header.path, place.name, place.shape, load)


def _undo_permutation(tensors: dict[str, FileTensor], meta: Metadata) -> None:
    heads = meta.integer("{a}.attention.head_count")
    kv_heads = meta.integer("{a}.attention.head_count_kv", heads)
    for name, tensor in tensors.items():
        for part, count in ((".attn_q.", heads), (".attn_k.", kv_heads)):
            if part in name:
                tensors[name] = tensor.changed(half_layout(count))


def _tokenizer(meta: Metadata) -> TextTokenizer | None:
    """The tokenizer of the metadata; None when the file has no tokens."""
    tokens = meta.get("tokenizer.ggml.tokens", list)
    if tokens is None:
        return None
    special = {}
    for key in ("bos", "eos"):
        index = meta.get(f"tokenizer.ggml.{key}_token_id", int)
        if index is not None and 0 <= index < len(tokens):
            special[f"{key}_token"] = str(tokens[index])

    def build() -> Any:
        if (model := meta.values.get("tokenizer.ggml.model")) != "gpt2":
            raise CheckpointError(
                f"{meta.path}: tokenizer '{model}' is not supported; "
                "supported: gpt2 (byte-level BPE)"
            )
        kinds = meta.get("tokenizer.ggml.token_type", list, [])
        control, whole = (
            [str(t) for t, kind in zip(tokens, kinds, strict=False) if kind == wanted]
            for wanted in (CONTROL, USER_DEFINED)
        )
        splitter = meta.get("tokenizer.ggml.pre", str, "gpt-2")
        # Llama 3 files do not say so, but llama.cpp begins their texts with the first token.
        begins = meta.get("tokenizer.ggml.add_bos_token", bool, splitter == "llama-bpe")
        return byte_pair_tokenizer(
            tokens,
            meta.get("tokenizer.ggml.merges", list, []),
            splitter,
            control,
            special.get("bos_token") if begins else None,
            whole,
        )

    return TextTokenizer(build, meta.get("tokenizer.chat_template", str), special)


def _gguf() -> tuple[Any, Any]:
    """The parts of the package gguf that are needed; importing it takes a while."""
    try:
        from gguf import constants, quants
    except ImportError as error:
        raise CheckpointError(f"GGUF files need the package gguf; {INSTALL}") from error
    return quants, constants
