"""Importing seqmix, and asking for help, is light; the public names are what they should be."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import seqmix

HEAVY = ("torch", "onnx", "onnxruntime", "triton", "tvm", "transformers", "tokenizers", "gguf")

SURVEY = """
import contextlib, io, json, sys
import seqmix
from seqmix import hooks, registry
from seqmix.cli import invoke

dir(seqmix), seqmix.__version__
names = {kind: registry.names(kind) for kind in registry.KINDS}
hooks.hook_origins()
with contextlib.redirect_stdout(io.StringIO()) as text:
    status = [invoke(arguments) for arguments in ([], ["--help"], ["run", "-h"], ["--version"])]
print(json.dumps({"modules": list(sys.modules), "names": names, "status": status,
                  "text": text.getvalue()}))
"""

PUBLIC = [
    "Availability", "Backend", "BackendError", "CaptureError", "Checkpoint", "CheckpointError",
    "ConfigError", "Context", "Executable", "IRError", "Model", "ModelConfig", "PluginError",
    "PositionEncoding", "Program", "SeqmixError", "SequenceMixer", "State", "StateSpec", "Strict",
    "__version__", "clip_gradient", "compile", "generate", "hookimpl", "load", "op", "resolve",
    "scan",
]  # fmt: skip


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=True
    )


def test_import_names_and_help_are_light() -> None:
    found = json.loads(python("-c", SURVEY).stdout)
    assert found["status"] == [0, 0, 0, 0]
    assert "--prompt" in found["text"]
    assert {"attention", "swiglu"} <= set(found["names"]["mixers"])
    loaded = {name.split(".")[0] for name in found["modules"]}
    assert loaded.isdisjoint(HEAVY)
    assert loaded.isdisjoint({"seqmix_hybrid", "seqmix_rope", "seqmix_onnxruntime"})


def test_help_costs_little_more_than_its_libraries() -> None:
    best: dict[str, float] = {}
    for _ in range(3):
        for name, arguments in (
            ("libraries", ["-c", "import typer, rich"]),
            ("help", ["-m", "seqmix", "--help"]),
        ):
            started = time.perf_counter()
            python(*arguments)
            best[name] = min(best.get(name, float("inf")), time.perf_counter() - started)
    assert best["help"] < 3 * best["libraries"]


def test_public_names() -> None:
    assert seqmix.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(seqmix, name) is not None
        assert name in dir(seqmix)
    assert "Tensor" not in dir(seqmix)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(inspect.getfile(seqmix)).read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        (alias.name, node.module)
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if node.module != "seqmix"
    }
    homes = {(name, f"seqmix.{module}") for name, module in seqmix._MODULES.items()}
    assert seen == homes
    assert {name for name, _ in homes} == set(PUBLIC) - {"__version__"}


@pytest.mark.parametrize("name", ["compile", "generate", "op", "scan"])
def test_a_module_does_not_hide_the_function_of_its_name(name: str) -> None:
    module = importlib.import_module(f"seqmix.{name}")
    assert inspect.ismodule(module)
    assert getattr(seqmix, name) is getattr(module, name)
    assert callable(getattr(seqmix, name))


def test_parts_that_are_used_by_their_own_name() -> None:
    assert callable(seqmix.testing.check_mixer)
    assert "attention" in seqmix.registry.names("mixers")
    assert callable(seqmix.capture.capture)


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="module 'seqmix' has no attribute 'Modell'"):
        _ = seqmix.Modell
