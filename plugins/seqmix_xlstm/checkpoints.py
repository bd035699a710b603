"""xLSTM checkpoints of other projects, as :func:`seqmix.checkpoint.resolve` finds them.

Three kinds of directories: block stacks and large models of the package ``xlstm``, and those of
transformers. Functions for files and for state dicts in memory stand in ``package_files`` and
``hugging_face``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from seqmix.checkpoint import Checkpoint, CheckpointReader
from seqmix.errors import CheckpointError
from seqmix_xlstm.hugging_face import MODEL_TYPE, read_hugging_face, to_hugging_face
from seqmix_xlstm.package_files import read_bare_stack, read_block_stack, read_large
from seqmix_xlstm.settings import Settings, read_settings
from seqmix_xlstm.stored import weights_in

__all__ = [
    "XLSTMReader",
    "read_bare_stack",
    "read_block_stack",
    "read_hugging_face",
    "read_large",
    "to_hugging_face",
]

CONFIG_FILES = ("config.json", "config.yaml", "config.yml")
STACK_KEYS = ("mlstm_block", "slstm_block")
LARGE_KEYS = {"embedding_dim", "num_blocks", "num_heads", "vocab_size"}


class XLSTMReader(CheckpointReader):
    """Reads a directory with an xLSTM and its configuration.

    ``config.json`` with the model type ``xlstm`` is that of transformers. ``config.yaml`` or
    ``config.json`` of the package describes a block stack where it has a group ``mlstm_block`` or
    ``slstm_block``, else a large model.
    """

    name: ClassVar[str] = MODEL_TYPE

    def matches(self, source: str) -> bool:
        """Whether there is such a configuration."""
        return _settings_in(Path(source)) is not None

    def read(self, source: str) -> Checkpoint:
        """The checkpoint; CheckpointError says what is wrong with it."""
        folder = Path(source)
        settings = _settings_in(folder)
        if settings is None:
            raise CheckpointError(
                f"{folder}: expected the configuration of an xLSTM in {' or '.join(CONFIG_FILES)}, "
                "found none"
            )
        if settings.data.get("model_type") == MODEL_TYPE:
            return read_hugging_face(folder)
        read = read_block_stack if _is_stack(settings) else read_large
        return replace(read(weights_in(folder), settings.where), source=source)


def _settings_in(folder: Path) -> Settings | None:
    """The configuration of a directory, if it is one of an xLSTM."""
    for name in CONFIG_FILES:
        try:
            if not (folder / name).is_file():
                continue
            settings = read_settings(folder / name)
        except (CheckpointError, OSError, ValueError):
            continue
        kind = settings.data.get("model_type")
        if kind == MODEL_TYPE if kind is not None else _is_package(settings):
            return settings
    return None


def _is_stack(settings: Settings) -> bool:
    return any(isinstance(settings.data.get(key), dict) for key in STACK_KEYS)


def _is_package(settings: Settings) -> bool:
    return _is_stack(settings) or set(settings.data) >= LARGE_KEYS
