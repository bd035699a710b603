"""Language models on text: packed tokens on disk, rows, and the command from file to model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import seqmix
from seqmix import registry
from seqmix.cli import invoke
from seqmix.config import build_config
from seqmix.errors import ConfigError
from seqmix.training.byte_tokens import byte_names, byte_tokenizer
from seqmix.training.plan import Plan, read_training
from seqmix.training.text import Text, TextConfig
from seqmix.training.tokens import TokenFile, build_tokens, documents

RHYME = "Es war ein König in Thule,\ngar treu bis an das Grab.\n"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


def task(folder: Path, *files: Path, **options: object) -> Text:
    given = {"files": files, "length": 10, "cache": folder / "cache", **options}
    return Text(build_config(TextConfig, given, "task 'text'"))


def test_documents_are_packed_with_a_separator_behind_each(tmp_path: Path) -> None:
    files = [write(tmp_path, "a.txt", "ab\r\n##cde##"), write(tmp_path, "b.txt", "fü")]
    made = build_tokens(files, tmp_path, None, "bytes", 0, "##")
    assert made.tokens.tobytes() == b"ab\r\n\0cde\0" + "fü".encode() + b"\0"
    assert made.tokens.dtype == np.uint8
    assert isinstance(made.tokens, np.memmap)
    assert made.highest == max("fü".encode())
    whole = build_tokens(files, tmp_path, None, "bytes", None, None)
    assert whole.tokens.tobytes() == "ab\r\n##cde##fü".encode()


def test_tokens_are_made_once(tmp_path: Path) -> None:
    file = write(tmp_path, "a.txt", "abc")
    first = build_tokens([file], tmp_path, None, "bytes", 0, None)
    made = first.path.stat().st_mtime_ns
    assert build_tokens([file], tmp_path, None, "bytes", 0, None).path.stat().st_mtime_ns == made
    write(tmp_path, "a.txt", "abd")
    other = build_tokens([file], tmp_path, None, "bytes", 0, None)
    assert other.path != first.path
    assert other.digest != first.digest


def test_a_separator_may_lie_across_two_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqmix.training.tokens.CHUNK", 3)
    file = write(tmp_path, "a.txt", "ab<end>cdefgh<end><end>i")
    assert list(documents(file, "<end>")) == ["ab", "cdefgh", "i"]


def test_broken_token_files_are_refused(tmp_path: Path) -> None:
    path = build_tokens([write(tmp_path, "a.txt", "abc")], tmp_path, None, "bytes", 0, None).path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="should have 4 tokens, found 3"):
        TokenFile(path)
    path.with_suffix(".json").write_text("{}")
    with pytest.raises(ConfigError, match="is no token file"):
        TokenFile(path)


def test_rows_follow_each_other_and_ask_for_what_follows(tmp_path: Path) -> None:
    text = bytes(range(32, 127)).decode()
    made = task(tmp_path, write(tmp_path, "a.txt", text), held_out=0.2)
    assert (len(made.train), len(made.held_out), made.vocab_size) == (7, 2, 256)
    batch = made.train.take(np.array([2, 0]))
    assert batch.inputs[0].tolist() == list(range(52, 62))
    assert batch.targets[0].tolist() == list(range(53, 63))
    assert batch.positions[1].tolist() == list(range(10))
    # The held-out rows begin where the others end.
    assert made.held_out.take(np.array([0])).inputs[0, 0] == 32 + 70
    assert made.held_out.take(np.array([1])).targets[0, -1] == 32 + 90


def test_other_files_may_be_held_out(tmp_path: Path) -> None:
    train, test = (write(tmp_path, f"{n}.txt", n * 25) for n in "ab")
    made = task(tmp_path, train, held_out_files=[test])
    assert (len(made.train), len(made.held_out)) == (2, 2)
    assert set(made.held_out.take(np.arange(2)).inputs.flatten().tolist()) == {ord("b")}
    other = task(tmp_path, train, held_out_files=[train_copy(train)])
    assert made.fingerprint() != other.fingerprint()


def train_copy(path: Path) -> Path:
    return write(path.parent, "copy.txt", path.read_text())


class Letters:
    """A tokenizer of another vocabulary, as checkpoints bring them."""

    def encode(self, text: str) -> list[int]:
        return [1000 + ord(letter) for letter in text]


def test_a_tokenizer_of_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = type("Config", (), {"eos": [7]})
    checkpoint = type("Checkpoint", (), {"tokenizer": Letters(), "config": config})
    monkeypatch.setattr("seqmix.training.text.resolve", lambda source: checkpoint)
    (tmp_path / "tokenizer.json").write_text("{}")
    file = write(tmp_path, "a.txt", "ab##" * 20)
    made = task(tmp_path, file, tokenizer=str(tmp_path), split="##", length=3)
    batch = made.train.take(np.array([0]))
    assert batch.inputs[0].tolist() == [1097, 1098, 7]
    assert made.vocab_size == 1099
    assert made.files() == {"tokenizer.json": b"{}"}


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("", {}, "0 tokens give no row of length 10 to train on; give more text"),
        ("x" * 12, {}, "13 tokens give no row of length 10 to train on"),
        (None, {}, "cannot be read"),
        ("x" * 99, {"split": ""}, "at least 1 character"),
        ("x" * 99, {"lenght": 3}, "unknown key 'lenght'; did you mean 'length'"),
    ],
)
def test_text_that_does_not_do(tmp_path: Path, text: str | None, options: dict, said: str) -> None:
    file = tmp_path / "a.txt" if text is None else write(tmp_path, "a.txt", text)
    with pytest.raises(ConfigError, match=said):
        task(tmp_path, file, **options)


def test_text_that_is_no_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff" * 99)
    with pytest.raises(ConfigError, match="cannot be read as UTF-8"):
        task(tmp_path, tmp_path / "a.txt")


def test_the_byte_tokenizer_is_the_bytes(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    assert len(set(byte_names())) == 256
    tokenizer = tokenizers.Tokenizer.from_str(byte_tokenizer())
    text = RHYME + "\0\t  漢\U0001f600"
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


PLAN = """
[model]
vocab_size = 256
width = 16
context_length = 32
tie_embeddings = true
[[model.blocks]]
repeat = 1
steps = [{{ kind = "base_conv", taps = 4 }}, {{ kind = "swiglu", hidden = 32 }}]
[task]
kind = "text"
files = ["{file}"]
cache = "{cache}"
length = 16
[training]
steps = {steps}
batch = 8
rate = 0.02
"""


def test_the_command_trains_and_the_model_can_be_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lightning_fabric")
    file = write(tmp_path, "a.txt", RHYME * 40)
    config = tmp_path / "plan.toml"
    config.write_text(PLAN.format(file=file, cache=tmp_path / "cache", steps=40))
    out = tmp_path / "run"
    assert invoke(["train", str(config), "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "report.json").read_text())
    assert printed["steps"] == 40
    assert printed["held_out_loss"] < 3.5
    loaded = seqmix.resolve(out / "model")
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.encode("Thule") == list(b"Thule")
    model = seqmix.Model.from_checkpoint(loaded)
    ids = torch.tensor([list(b"Es war")])
    assert model(ids, torch.arange(6)[None])[0].shape == (1, 6, 256)
    # The same command finds nothing left to do.
    before = (out / "metrics.csv").read_bytes()
    assert invoke(["train", str(config), "--out", str(out)]) == 0
    assert (out / "metrics.csv").read_bytes() == before
    assert "step 40: held out loss" in capsys.readouterr().out


def test_the_command_explains_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "plan.toml"
    config.write_text(PLAN.format(file="x", cache="y", steps=40).replace("batch", "bacht"))
    assert invoke(["train", str(config), "--out", str(tmp_path / "run")]) == 2
    assert "unknown key 'training.bacht'; did you mean 'batch'" in capsys.readouterr().err
    assert invoke(["train", str(tmp_path / "none.toml"), "--out", str(tmp_path / "run")]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mqar", "bytes", "bpe"])
def test_the_samples_fit(name: str) -> None:
    training = read_training(Path("examples/train") / f"{name}.toml")
    options = registry.get("tasks", training.task.kind).Config(**training.task.options)
    wanted = getattr(options, "vocab_size", getattr(options, "vocabulary", None)) or 256
    assert seqmix.Model(training.model).config.vocab_size == wanted
    assert training.model.context_length >= options.length


def test_the_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["train", "--help"]) == 0
    words = set(re.findall(r"[\w-]+", capsys.readouterr().out))
    assert set(Plan.model_fields) | set(TextConfig.model_fields) <= words
    assert {"--strategy", "ddp", "fsdp", "torchrun", "--tensorboard", "--no-resume"} <= words
