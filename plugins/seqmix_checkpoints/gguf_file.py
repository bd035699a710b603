"""GGUF files of Llama models: weights are dequantized one by one when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from seqmix.checkpoint import Checkpoint, CheckpointReader
from seqmix.config import Kind, ModelConfig
from seqmix.errors import CheckpointError
from seqmix_checkpoints.chat import INSTALL
from seqmix_checkpoints.families import LLAMA, LlamaSizes, expected_shapes
from seqmix_checkpoints.gguf_header import GGUFHeader, TensorPlace, read_header
from seqmix_checkpoints.huggingface import validated
from seqmix_checkpoints.tensors import FileTensor, read_bytes, renamed
from seqmix_checkpoints.tokenizer import TextTokenizer, byte_pair_tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["GGUFReader", "half_layout"]

CONTROL, USER_DEFINED = 3, 4


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
        meta = _Metadata(header)
        config = _config(header, meta)
        tensors = {name: _tensor(header, place) for name, place in header.tensors.items()}
        _undo_permutation(tensors, meta)

        def ignored(name: str) -> bool:
            return config.tie_embeddings and name == "output.weight"

        names = LLAMA.names(meta.integer("llama.block_count"), "gguf")
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


class _Metadata:
    """Typed access to the metadata of a file."""

    def __init__(self, header: GGUFHeader) -> None:
        self.path = header.path
        self.values: Mapping[str, Any] = header.metadata

    def get(self, key: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:
        """The value of a key, or ``default`` when it is missing."""
        value = self.values.get(key, default)
        wrong = not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool)
        if value is not default and wrong:
            raise CheckpointError(
                f"{self.path}: metadata '{key}' should be {kinds}, found {str(value)[:80]!r}"
            )
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """A number >= 1; without a default it has to be there."""
        value = self.get(key, int, default)
        if value is None or value < 1:
            raise CheckpointError(
                f"{self.path}: metadata '{key}' should be a whole number >= 1, found {value!r}"
            )
        return int(value)

    def real(self, key: str, default: float | None = None) -> float:
        """A float32 as the shortest decimal that means it, so that 1e-5 stays 1e-5."""
        value = self.get(key, (int, float), default)
        if value is None or not abs(value) < 1e12:
            raise CheckpointError(
                f"{self.path}: metadata '{key}' should be a number, found {value!r}"
            )
        return float(str(np.float32(value)))


def _config(header: GGUFHeader, meta: _Metadata) -> ModelConfig:
    _require_llama(header, meta)
    width, heads = (
        meta.integer("llama.embedding_length"),
        meta.integer("llama.attention.head_count"),
    )
    head_dim = meta.integer("llama.attention.key_length", width // heads or 1)
    layers = meta.integer("llama.block_count")
    if layers > len(header.tensors):
        raise CheckpointError(
            f"{header.path}: llama.block_count is {layers}, found {len(header.tensors)} tensors; "
            "the file is damaged, fetch it again"
        )
    if meta.integer("llama.rope.dimension_count", head_dim) != head_dim:
        raise CheckpointError(
            f"{header.path}: llama.rope.dimension_count should be the head size {head_dim}, "
            f"found {meta.values['llama.rope.dimension_count']}"
        )
    embedding = header.tensors.get("token_embd.weight")
    rows = embedding.shape[0] if embedding and embedding.shape else None
    position, context_length = _position(meta)
    bos, eos = (meta.get(f"tokenizer.ggml.{k}_token_id", int) for k in ("bos", "eos"))
    eot = meta.get("tokenizer.ggml.eot_token_id", int)
    sizes = LlamaSizes(
        name=header.path.stem,
        vocab_size=meta.integer("llama.vocab_size", rows),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=meta.integer("llama.attention.head_count_kv", heads),
        head_dim=head_dim,
        hidden=meta.integer("llama.feed_forward_length"),
        eps=meta.real("llama.attention.layer_norm_rms_epsilon", 1e-5),
        context_length=context_length,
        position=position,
        tied="output.weight" not in header.tensors,
        attention_bias="blk.0.attn_q.bias" in header.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in header.tensors,
        bos=bos,
        eos=tuple(dict.fromkeys(i for i in (eos, eot) if i is not None)),
    )
    return validated(sizes, str(header.path))


def _require_llama(header: GGUFHeader, meta: _Metadata) -> None:
    if (found := meta.values.get("general.architecture")) != "llama":
        raise CheckpointError(
            f"{header.path}: architecture should be 'llama', found {found!r}; no other is supported"
        )
    if meta.values.get("llama.expert_count"):
        raise CheckpointError(f"{header.path}: mixtures of experts are not supported")
    if (parts := meta.get("split.count", int, 1)) > 1:
        raise CheckpointError(
            f"{header.path}: should be a whole model, found one of {parts} parts; "
            "join them with llama-gguf-split --merge"
        )
    if "rope_freqs.weight" in header.tensors:
        raise CheckpointError(
            f"{header.path}: has rope_freqs.weight, the rope type 'llama3', which is not "
            "supported; supported: default, yarn"
        )


def _position(meta: _Metadata) -> tuple[Kind, int]:
    """Position encoding and context length; the latter is the extended one already."""
    theta = meta.real("llama.rope.freq_base", 10000.0)
    context_length = meta.integer("llama.context_length")
    kind = meta.get("llama.rope.scaling.type", str, _unnamed_scaling(meta))
    if kind == "none":
        return Kind(kind="rope", theta=theta), context_length
    if kind != "yarn":
        raise CheckpointError(
            f"{meta.path}: rope scaling '{kind}' is not supported; supported: none, yarn"
        )
    original = meta.integer("llama.rope.scaling.original_context_length", context_length)
    factor = meta.real("llama.rope.scaling.factor", context_length / original)
    options = {}
    for ours in ("attn_factor", "beta_fast", "beta_slow"):
        for key in (f"llama.rope.scaling.{ours}", f"llama.rope.scaling.yarn_{ours}"):
            if key in meta.values:
                options[ours] = meta.real(key)
    position = Kind(
        kind="yarn", theta=theta, factor=factor, original_context_length=original, **options
    )
    return position, max(context_length, round(factor * original))


def _unnamed_scaling(meta: _Metadata) -> str:
    """What llama.cpp understands when no type is named: a factor alone scales linearly."""
    keys = ("llama.rope.scaling.factor", "llama.rope.scale_linear")
    factors = [meta.real(key) for key in keys if key in meta.values]
    return "linear" if any(factor not in (0.0, 1.0) for factor in factors) else "none"


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


def _undo_permutation(tensors: dict[str, FileTensor], meta: _Metadata) -> None:
    heads = meta.integer("llama.attention.head_count")
    kv_heads = meta.integer("llama.attention.head_count_kv", heads)
    for name, tensor in tensors.items():
        for part, count in ((".attn_q.", heads), (".attn_k.", kv_heads)):
            if part in name:
                tensors[name] = tensor.changed(half_layout(count))


def _tokenizer(meta: _Metadata) -> TextTokenizer | None:
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
