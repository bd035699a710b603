"""Directories of transformers with the model type ``xlstm``: read, and written back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from torch import Tensor

from seqmix.checkpoint import Checkpoint
from seqmix.config import Kind, ModelConfig
from seqmix.errors import CheckpointError
from seqmix.model import Model
from seqmix.storage import write_tensors
from seqmix.whole_file import write_whole
from seqmix.whole_folder import whole_folder
from seqmix_xlstm.large_names import HUGGING_FACE_EMBEDDING, is_fused, large_rows
from seqmix_xlstm.large_options import DTYPES, HUGGING_FACE_FFN_FACTOR, hugging_face_config
from seqmix_xlstm.names import expected_shapes, weights_of
from seqmix_xlstm.settings import read_settings
from seqmix_xlstm.stored import read_stored

__all__ = ["MODEL_TYPE", "read_hugging_face", "to_hugging_face"]

MODEL_TYPE = "xlstm"
CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
WEIGHTS_FILE = "model.safetensors"
HEAD = "lm_head.weight"
ROUNDING = 64


def read_hugging_face(folder: Path | str) -> Checkpoint:
    """A directory with ``config.json`` and weights in one file or in shards.

    Some that transformers itself cannot run are read as well: its cache wants queries and keys of
    a multiple of 64 channels. CheckpointError lists options that ours do not have, and tensors
    that are missing, misshapen or not expected.
    """
    folder = Path(folder)
    settings = read_settings(folder / CONFIG_FILE)
    where, tensors = read_stored(folder)
    name = folder.resolve().name or MODEL_TYPE
    config = hugging_face_config(settings, name, len(tensors), _generation_eos(folder))
    shapes = expected_shapes(config, settings.where)
    rows = large_rows(
        shapes,
        len(config.steps()) // 2,
        embedding=HUGGING_FACE_EMBEDDING,
        fused=is_fused(tensors),
    )
    ignored = {HEAD} if config.tie_embeddings else set()
    weights = weights_of(where, tensors, rows, shapes, ignored)
    return Checkpoint(config, weights, source=str(folder))


def to_hugging_face(model: Model, directory: Path | str) -> None:
    """Write a large xLSTM as transformers does, bit for bit; the directory is made if need be.

    CheckpointError for a model that transformers has no options for.
    """
    settings = _settings_of(model.config)
    state = model.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    rows = large_rows(
        shapes, settings["num_hidden_layers"], embedding=HUGGING_FACE_EMBEDDING, fused=False
    )
    tensors = {
        row.theirs: state[row.ours].detach().cpu().contiguous()
        for row in rows
        if row.theirs is not None and row.ours in state
    }
    _write(Path(directory), settings, tensors)


def _write(folder: Path, settings: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """The files of an earlier model are replaced at once, or not at all."""
    with whole_folder(folder, CONFIG_FILE) as aside:
        write_tensors(aside / WEIGHTS_FILE, tensors)
        write_whole(aside / CONFIG_FILE, json.dumps(settings, indent=2) + "\n")


def _settings_of(config: ModelConfig) -> dict[str, Any]:
    """``config.json`` of a model; CheckpointError when it is none that transformers has."""
    mixer, feed_forward = _block_of(config)
    options = _options(config, mixer)
    if config.logit_soft_cap == 0 or options["gate_soft_cap"] == 0:
        raise _none(config, "expected soft caps of gates and logits, found one of 0")
    if config.norm.kind != "rms" or config.norm.eps != options["norm_eps"]:
        raise _none(config, f"expected rms norms with one eps, found {config.norm!r}")
    if config.position is not None:
        raise _none(config, f"expected no position encoding, found '{config.position.kind}'")
    factor, rounding = _ffn_factor(config.width, feed_forward["hidden"])
    names = {ours: theirs for theirs, ours in DTYPES.items()}
    return {
        "architectures": ["xLSTMForCausalLM"],
        "model_type": MODEL_TYPE,
        "dtype": names[config.dtype],
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "embedding_dim": config.width,
        "num_hidden_layers": len(config.steps()) // 2,
        "num_blocks": len(config.steps()) // 2,
        "max_position_embeddings": config.context_length,
        "tie_word_embeddings": config.tie_embeddings,
        "ffn_proj_factor": factor,
        "ffn_round_up_to_multiple_of": rounding,
        "output_logit_soft_cap": config.logit_soft_cap,
        "bos_token_id": config.bos,
        "eos_token_id": config.eos[0] if len(config.eos) == 1 else config.eos or None,
        "use_bias": False,
        "add_out_norm": True,
        "weight_mode": "single",
        "mode": "inference",
        "return_last_states": True,
        **options,
    }


def _block_of(config: ModelConfig) -> tuple[Kind, dict[str, Any]]:
    """The mLSTM and the options of the SwiGLU behind it, the same in all blocks."""
    steps = config.steps()
    kinds = config.branches()
    if len(kinds) != len(steps) or len(kinds) % 2:
        raise _none(config, "expected pairs of an mlstm and a swiglu step")
    pairs = list(zip(kinds[::2], kinds[1::2], strict=True))
    mixer, feed_forward = pairs[0]
    if (mixer.kind, feed_forward.kind) != ("mlstm", "swiglu"):
        found = f"'{mixer.kind}' and '{feed_forward.kind}'"
        raise _none(config, f"expected pairs of an mlstm and a swiglu step, found {found}")
    if any(pair != pairs[0] for pair in pairs):
        raise _none(config, "expected blocks that are all alike")
    options = feed_forward.options
    if options.get("bias") or options.get("activation", "silu") != "silu":
        raise _none(config, "expected a swiglu of silu without biases")
    return mixer, options


def _options(config: ModelConfig, mixer: Kind) -> dict[str, Any]:
    """What mLSTM is built with, in their words."""
    from seqmix_xlstm.mlstm_mixer import MLSTMConfig

    options = MLSTMConfig.model_validate(mixer.options)
    if options.bias or options.input_gate != "exp" or not options.normalize:
        raise _none(config, "expected an mlstm without biases and with an exponential input gate")
    return {
        "num_heads": options.heads,
        "qk_dim_factor": options.qk_dim_factor,
        "v_dim_factor": options.v_dim_factor,
        "gate_soft_cap": options.gate_soft_cap,
        "norm_eps": options.norm_eps,
        "eps": options.eps,
        "chunk_size": options.chunk,
    }


def _ffn_factor(width: int, hidden: int) -> tuple[float, int]:
    """A factor and a rounding that give ``hidden``: the usual ones where they do."""
    factor, rounding = HUGGING_FACE_FFN_FACTOR, ROUNDING
    if int((width * factor + rounding - 1) // rounding * rounding) == hidden:
        return factor, rounding
    factor = hidden / width
    while int(width * factor) < hidden:
        factor = math.nextafter(factor, math.inf)
    return factor, 1


def _generation_eos(folder: Path) -> Any:
    """The last tokens that generation goes by, which need not be those of the model."""
    path = folder / GENERATION_FILE
    return read_settings(path).data.get("eos_token_id") if path.is_file() else None


def _none(config: ModelConfig, found: str) -> CheckpointError:
    return CheckpointError(
        f"model '{config.name}' is no xLSTM of transformers: {found}; save it with save_model"
    )
