"""Our own configurations, JSON and TOML: read, and a fresh model made of them."""

from __future__ import annotations

from pathlib import Path

from tests.core import tiny
from tests.fuzz.target import Target

from seqmix.checkpoint import resolve

__all__ = ["JSON", "TOML"]

TEXT = """
name = "tiny"
vocab_size = 11
width = 8
context_length = 16
head_dim = 4
eos = [1]
tie_embeddings = true
[norm]
kind = "rms"
eps = 1e-5
[position]
kind = "yarn"
theta = 1e2
factor = 2.0
original_context_length = 8
[[blocks]]
repeat = 2
steps = [
    { kind = "attention", heads = 2, head_dim = 4 },
    [{ kind = "swiglu", hidden = 5 }, { kind = "mlp", hidden = 3 }],
]
replace = [{ step = 0, by = { kind = "mlstm", heads = 2 }, count = 1 }]
"""


def make_json(folder: Path) -> None:
    (folder / "model.json").write_text(tiny.config().to_json(), encoding="utf-8")


def make_toml(folder: Path) -> None:
    (folder / "model.toml").write_text(TEXT, encoding="utf-8")


JSON = Target("config_json", make_json, lambda folder: resolve(folder / "model.json"))
TOML = Target("config_toml", make_toml, lambda folder: resolve(folder / "model.toml"))
