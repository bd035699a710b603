"""Every fuzz target by name, and the package without which it cannot run."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from tests.fuzz.target import Target

__all__ = ["NAMES", "target"]

NAMES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "ir_text": ("target_ir_text", "TARGET", ()),
    "config_json": ("target_config", "JSON", ()),
    "config_toml": ("target_config", "TOML", ()),
    "saved": ("target_saved", "TARGET", ()),
    "huggingface": ("target_huggingface", "TARGET", ("tokenizers", "jinja2")),
    "gguf": ("target_gguf", "TARGET", ("gguf", "tokenizers", "jinja2")),
    "xlstm": ("target_xlstm", "TARGET", ()),
    "xlstm_stack": ("target_xlstm", "STACK", ("yaml",)),
    "onnx": ("target_onnx", "TARGET", ("onnx", "onnxruntime")),
    "tvm": ("target_tvm", "TARGET", ()),
    "tvm_load": ("target_tvm", "LOAD", ("tvm",)),
    "cache": ("target_cache", "TARGET", ()),
}
"""Module, variable and needed packages."""


def target(name: str) -> Target | str:
    """A target, or which package it lacks here."""
    module, variable, needed = NAMES[name]
    if lacking := [package for package in needed if find_spec(package) is None]:
        return f"needs {', '.join(lacking)}"
    found: Target = getattr(import_module(f"tests.fuzz.{module}"), variable)
    return found
