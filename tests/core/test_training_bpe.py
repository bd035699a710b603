"""Byte-level BPE that is trained on the text: packing, caching, and the model that can be run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.core.training_processes import start

import seqmix
from seqmix import registry
from seqmix.cli import invoke
from seqmix.config import build_config
from seqmix.errors import CheckpointError, ConfigError
from seqmix.training.text import Text, TextConfig
from seqmix.training.trained_tokenizer import SEPARATOR, train_tokenizer

pytest.importorskip("tokenizers")

VERSES = (
    "Der Mond ist aufgegangen,\ndie goldnen Sternlein prangen\nam Himmel hell und klar;",
    "der Wald steht schwarz und schweiget,\nund aus den Wiesen steiget\nder weiße Nebel wunderbar.",
    "Wie ist die Welt so stille,\nund in der Dämmrung Hülle\nso traulich und so hold",
)
POEM = "##".join(VERSES * 4)


@pytest.fixture
def poem(tmp_path: Path) -> Path:
    path = tmp_path / "poem.txt"
    path.write_text(POEM, encoding="utf-8")
    return path


def task(poem: Path, **options: object) -> Text:
    given = {"files": [poem], "length": 8, "cache": poem.parent / "cache", "split": "##"}
    given |= {"tokenizer": "bpe", "vocabulary": 300, **options}
    return Text(build_config(TextConfig, given, "task 'text'"))


def test_documents_are_packed_behind_their_separator(poem: Path) -> None:
    made = task(poem)
    path, tokenizer = train_tokenizer("bpe", [poem], "##", 300, poem.parent / "cache")
    (end,) = tokenizer.encode(SEPARATOR)
    assert end == 0
    tokens = [id for verse in VERSES * 4 for id in [*tokenizer.encode(verse), end]]
    rows = len(made.train)
    read = made.train.take(np.arange(rows)).inputs.flatten().tolist()
    assert read == tokens[: rows * 8]
    assert isinstance(made.train.tokens, np.memmap)
    assert made.vocab_size == 300
    assert made.files() == {"tokenizer.json": path.read_bytes()}
    # Pairs of bytes became tokens, so that there are far fewer tokens than bytes.
    assert len(tokens) < 0.75 * len(POEM.encode())


def test_every_text_comes_back(poem: Path) -> None:
    _, tokenizer = train_tokenizer("bpe", [poem], None, 280, poem.parent)
    text = "  Nebel\t\r\n漢\U0001f600 \0 und \x7f"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert max(tokenizer.encode(text)) < 280


def test_it_is_trained_once_and_anew_for_another_text(poem: Path) -> None:
    cache = poem.parent / "cache"
    first, _ = train_tokenizer("bpe", [poem], None, 280, cache)
    made = first.stat().st_mtime_ns
    assert train_tokenizer("bpe", [poem], None, 280, cache)[0].stat().st_mtime_ns == made
    assert train_tokenizer("bpe", [poem], None, 281, cache)[0] != first
    before = task(poem).fingerprint()
    poem.write_text(POEM + "##" + VERSES[0].upper() * 3, encoding="utf-8")
    assert train_tokenizer("bpe", [poem], None, 280, cache)[0] != first
    assert task(poem).fingerprint() != before


def test_the_same_text_gives_the_same_file(poem: Path) -> None:
    made = [train_tokenizer("bpe", [poem], "##", 320, poem.parent / n)[0] for n in "abc"]
    assert len({path.read_bytes() for path in made}) == 1


@pytest.mark.full
def test_another_process_makes_the_same_file(poem: Path) -> None:
    here, _ = train_tokenizer("bpe", [poem], "##", 320, poem.parent / "here")
    process = start(train_in_threads, poem, poem.parent / "there")
    process.join(60)
    assert (poem.parent / "there" / here.name).read_bytes() == here.read_bytes()


def train_in_threads(poem: Path, folder: Path) -> None:
    os.environ |= {"RAYON_NUM_THREADS": "3", "TOKENIZERS_PARALLELISM": "true"}
    train_tokenizer("bpe", [poem], "##", 320, folder)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vocabulary": None}, r"'bpe' is trained on the text and needs 'vocabulary'"),
        ({"vocabulary": 256}, r"256 bytes and the separator .* make 'vocabulary' more than 256"),
        ({"vocabulary": 5000}, r"the text has pairs for \d+ tokens only; make 'vocabulary' at"),
        ({"tokenizer": "bytes"}, r"for a tokenizer that is trained \(bpe\), and 'bytes' has its"),
        ({"tokenizer": "bpee"}, r"'bpee' is no checkpoint"),
    ],
)
def test_options_that_do_not_fit(poem: Path, options: dict, said: str) -> None:
    if options.get("tokenizer") == "bpee":
        options = {**options, "vocabulary": None}
    with pytest.raises((ConfigError, CheckpointError), match=said):
        task(poem, **options)


def test_text_that_is_no_utf8_is_named(poem: Path) -> None:
    poem.write_bytes(POEM.encode() + b"\xff")
    with pytest.raises(ConfigError, match=r"poem\.txt: cannot be read as UTF-8 text"):
        task(poem)


def test_a_damaged_file_says_what_to_do(poem: Path) -> None:
    path, _ = train_tokenizer("bpe", [poem], "##", 300, poem.parent / "cache")
    path.write_text("{}")
    with pytest.raises(CheckpointError, match=r"is no usable tokenizer: .* remove it"):
        task(poem)


def test_without_the_library_the_error_says_what_to_install(
    poem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"seqmix\[checkpoints\]"):
        task(poem)


PLAN = """
[model]
vocab_size = 300
width = 16
context_length = 32
eos = [0]
[[model.blocks]]
steps = [{{ kind = "base_conv", taps = 4 }}, {{ kind = "swiglu", hidden = 32 }}]
[task]
kind = "text"
files = ["{file}"]
split = "##"
tokenizer = "bpe"
vocabulary = 300
cache = "{cache}"
length = 8
[training]
steps = 40
batch = 8
rate = 0.02
"""


def test_the_command_trains_and_the_model_can_be_run(
    poem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lightning_fabric")
    assert "bpe" in registry.names("tokenizers")
    config, out = poem.parent / "plan.toml", poem.parent / "run"
    config.write_text(PLAN.format(file=poem, cache=poem.parent / "cache"))
    assert invoke(["train", str(config), "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 40
    loaded = seqmix.resolve(out / "model")
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.decode(loaded.tokenizer.encode(VERSES[1])) == VERSES[1]
    assert invoke(["run", str(out / "model"), "--prompt", "Der Mond", "--max-tokens", "4"]) == 0
    assert "tokens in" in capsys.readouterr().err
