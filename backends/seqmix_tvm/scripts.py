"""The scripts that run a folder without torch: copies of three modules of this package."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from seqmix.whole_file import write_whole

__all__ = ["write_scripts"]

_INPUTS = {"input_ids", "positions"}
_RUN = ("run_script.py", "run.py")
_MODEL = ("compiled_model.py", "compiled_model.py")
_FOLDER = ("compiled_folder.py", "compiled_folder.py")
_SCRIPTS = (_RUN, _MODEL, _FOLDER)


def write_scripts(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Write ``run.py`` and what it imports, where there is a model to run; the names."""
    entry = manifest["entries"].get("forward", {"inputs": {}})
    # The script knows CPUs alone.
    if manifest["target"]["kind"] != "llvm" or not _INPUTS.issubset(entry["inputs"]):
        return []
    for source, name in _SCRIPTS:
        text = files("seqmix_tvm").joinpath(source).read_text(encoding="utf-8")
        # Beside each other, they are no package.
        text = text.replace("from seqmix_tvm.", "from ")
        write_whole(folder / name, text)
    return [name for _, name in _SCRIPTS]
