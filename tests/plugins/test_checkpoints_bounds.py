"""Templates and tokenizers of hostile files: they end in little time and memory, with our error."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.plugins.checkpoint_samples import write_folder

from seqmix.checkpoint import resolve
from seqmix.errors import CheckpointError
from seqmix_checkpoints.chat import render_chat
from seqmix_checkpoints.tokenizer import TextTokenizer, tokenizer_of_directory

MESSAGES = [{"role": "user", "content": "hi <x>"}]
NESTED = (
    "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("{% for m in messages %}{{ m.role ~ ': ' ~ m['content'] }}{% endfor %}", "user: hi <x>"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "hi <x>"}'),
        ("{{ messages | map(attribute='role') | join('-') }}", "user"),
        ("{{ 'a b'.split(' ')[-1].strip() + '%s' % 1 }}", "b1"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = ns.n * 2 ** 3 %}{{ ns.n }}", "8"),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(3) }}", "<3>"),
        ("{% for m in messages if m.role == 'user' %}{{ loop.index }}{% endfor %}", "1"),
        ("{{ 'axa' | replace('a', 'bb') | upper }}{{ 'axa'.replace('a', '') }}", "BBXBBx"),
        ("{% if messages | selectattr('role', 'equalto', 'user') | list %}u{% endif %}", "u"),
        ("{% set j = joiner(',') %}{{ j() }}a{{ j() }}{{ '%s' | format('b') }}", "a,b"),
        ("{{ {'a': 1}.items() | list }}{{ messages[0].get('k', 'd') }}", "[('a', 1)]d"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
    ],
)
def test_what_templates_use(template: str, prompt: str) -> None:
    assert render_chat(template, MESSAGES, {}) == prompt


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for a in range(99999) %}{% set x = range(99999) | list %}{% endfor %}", "steps"),
        ("{{ 'a' * 10 ** 10 }}", "characters"),
        ("{{ [1] * 10 ** 10 }}", "characters"),
        ("{{ 2 ** (10 ** 8) }}", "characters"),
        ("{{ '%9999999999d' % 1 }}", "width"),
        ("{{ '{:>9999999999}'.format(1) }}", "width"),
        ("{{ '{:>{}}'.format(1, 99999) }}", "width"),
        ("{{ '%9999999d' | format(1) }}", "width"),
        ("{{ 'x'.ljust(10 ** 10) }}", "number beyond"),
        ("{{ 'x' | indent(10 ** 9) }}", "number beyond"),
        ("{{ ('x' * 1000000).replace('x', 'y' * 100000) }}", "characters"),
        ("{{ ('x' * 1000000) | replace('x', 'y' * 100000) }}", "characters"),
        ("{{ ([1] * 100000) | join('y' * 100000) }}", "characters"),
        ("{{ ('y' * 100000).join(['a'] * 100000) }}", "characters"),
        (f"{NESTED}{{{{ ns.x }}}}", "characters"),
        (f"{NESTED}{{{{ ns }}}}", "characters"),
        (NESTED.replace("[ns.x, ns.x]", "ns.x ~ ns.x") + "{{ ns.x }}", "characters"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ lipsum(n=100000) }}", "undefined"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ strftime_now('%1000000000Y') }}", "width"),
        ("{{ " + "(" * 5000, "recursion"),
    ],
)
def test_templates_that_would_not_end(template: str, said: str) -> None:
    started = time.process_time()
    with pytest.raises(CheckpointError, match=said):
        render_chat(template, MESSAGES, {})
    assert time.process_time() - started < 8


@pytest.mark.full
def test_loops_in_loops_end() -> None:
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(CheckpointError, match="takes more than 500000 steps"):
        render_chat(loops, MESSAGES, {})


def folder_with(path: Path, change: Any) -> TextTokenizer:
    tokenizers = pytest.importorskip("tokenizers", reason="text needs the package tokenizers")
    inner = tokenizers.Tokenizer(
        tokenizers.models.BPE({chr(97 + i): i for i in range(26)}, [], unk_token="z")
    )
    change(tokenizers, inner)
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(inner.to_str(), encoding="utf-8")
    found = tokenizer_of_directory(path)
    assert found is not None
    return found


def test_a_panic_is_our_error(tmp_path: Path) -> None:
    """Onigmo gives up on a pattern that goes back too often, and the package panics."""

    def change(library: Any, inner: Any) -> None:
        words = library.pre_tokenizers.Split(library.Regex("(a+)+$"), "isolated")
        inner.pre_tokenizer = words

    tokenizer = folder_with(tmp_path, change)
    assert tokenizer.encode("b") == [1]
    with pytest.raises(CheckpointError, match=r"fails on this text.*PanicException"):
        tokenizer.encode("a" * 40 + "b")


def test_padding_and_truncation_are_off(tmp_path: Path) -> None:
    def change(library: Any, inner: Any) -> None:
        inner.enable_padding(length=10**12)
        inner.enable_truncation(1)

    assert folder_with(tmp_path, change).encode("abc") == [0, 1, 2]


@pytest.mark.parametrize("part", ["normalizer", "decoder", "post_processor"])
def test_text_does_not_explode(tmp_path: Path, part: str) -> None:
    def change(library: Any, inner: Any) -> None:
        twice = library.normalizers.Replace("a", "aa")
        if part == "decoder":
            inner.decoder = library.decoders.Sequence([library.decoders.Replace("a", "aa")] * 60)
        elif part == "normalizer":
            inner.normalizer = library.normalizers.Sequence([twice] * 60)
        else:
            single = library.processors.TemplateProcessing(single="$A $A", special_tokens=[])
            inner.post_processor = library.processors.Sequence([single] * 60)

    with pytest.raises(CheckpointError, match=f"the {part} makes text up to 1.2e\\+18 times"):
        folder_with(tmp_path, change).encode("aaa")


def test_tokenizers_that_are_none(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="text needs the package tokenizers")
    for data in (b"", b"{}", b"[" * 10**6, b"\xff", b'{"model": {"type": "BPE"}}'):
        (tmp_path / "tokenizer.json").write_bytes(data)
        found = tokenizer_of_directory(tmp_path)
        assert found is not None
        with pytest.raises(CheckpointError, match=r"tokenizer\.json: is no usable tokenizer"):
            found.encode("a")


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
    ],
)
def test_links_out_of_the_folder(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "tokenizer.json").write_text("{}")
    path = folder / name
    (tmp_path / name).write_bytes(path.read_bytes() if path.exists() else b"{}")
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / name)
    with pytest.raises(CheckpointError, match="leads out of"):
        encoded(folder)


def encoded(folder: Path) -> list[int]:
    tokenizer = resolve(folder).tokenizer
    assert tokenizer is not None
    return tokenizer.encode("a")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, the weights have 21"),
        ({"hidden_size": 10**9}, "should be"),
        ({"vocab_size": 10**9}, "should be"),
        ({"intermediate_size": 2**60}, "usable|sizes|should be"),
        ({"model_type": "x" * 10**6, "architectures": None}, "not supported"),
    ],
)
def test_sizes_that_the_weights_do_not_have(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    started = time.process_time()
    with pytest.raises(CheckpointError, match=said) as error:
        resolve(write_folder(tmp_path, **changes))
    assert len(str(error.value)) < 5000
    assert time.process_time() - started < 5


def test_a_thousand_wrong_names_are_told_at_once(tmp_path: Path) -> None:
    import torch

    weights = {f"model.layers.{i}.mlp.gate_proj.weights": torch.zeros(0) for i in range(3000)}
    started = time.process_time()
    with pytest.raises(CheckpointError, match=r"and \d+ more"):
        resolve(write_folder(tmp_path, weights, num_hidden_layers=40))
    assert time.process_time() - started < 8


def test_named_templates(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    named = [{"name": "default", "template": "x"}, {"name": "tools", "template": "y"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    found = tokenizer_of_directory(tmp_path)
    assert found is not None
    assert found.chat([]) == "x"
