"""A Hugging Face directory in two shards, with tokenizer and chat template."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file
from tests.fuzz.target import Target
from tests.plugins.checkpoint_samples import foreign_weights, write_folder

from seqmix.checkpoint import Checkpoint, resolve
from seqmix.model import Model

__all__ = ["TARGET", "read_all"]

TEMPLATE = """{% set ns = namespace(text='', n=2) %}
{% macro turn(m) %}<{{ m['role'] ~ '|' ~ m.content.strip().replace('a', 'bb') }}>{% endmacro %}
{% for m in messages if m.role != 'x' %}
  {% for i in range(ns.n) %}{% set ns.text = ns.text ~ turn(m) + 'a' * 3 %}{% endfor %}
  {{ m | tojson(indent=2) }}{{ [ns.text, m.content] | join(' ') | upper | indent(2) }}
  {{ '%s %d' % (bos_token, 2 ** 7) }}{{ '{:>4}'.format(loop.index) }}{{ m.items() | list }}
  {% if loop.last and add_generation_prompt %}{{ messages | map(attribute='role') | join }}
  {% elif false %}{{ raise_exception('no') }}{% endif %}
{% endfor %}{{ strftime_now('%Y') | length }}{{ messages[-1:] | length * 3 }}
"""

ROPE = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}


def make(folder: Path) -> None:
    weights = foreign_weights()
    write_folder(folder, weights, rope_scaling=ROPE, eos_token_id=[1, 2], bos_token_id=0)
    (folder / "model.safetensors").unlink()
    names = list(weights)
    places: dict[str, str] = {}
    for shard, part in enumerate((names[:9], names[9:])):
        file = f"model-{shard}.safetensors"
        save_file({name: weights[name] for name in part}, folder / file)
        places |= dict.fromkeys(part, file)
    for name, content in {
        "model.safetensors.index.json": {"metadata": {}, "weight_map": places},
        "generation_config.json": {"eos_token_id": 1},
        "tokenizer_config.json": {
            "bos_token": {"content": "<s>"},
            "eos_token": "</s>",
            "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
        },
    }.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    (folder / "tokenizer.json").write_text(_tokenizer(), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


def _tokenizer() -> str:
    import tokenizers

    vocabulary = {"<s>": 0, "</s>": 1, **{chr(97 + i): 2 + i for i in range(26)}, "ab": 28}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [("a", "b")]))
    parts = tokenizers.pre_tokenizers
    words = parts.Split(tokenizers.Regex(r"\s+(?!\S)|[^a-z]|[a-z]+"), "isolated")
    inner.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFC(), tokenizers.normalizers.Replace("zz", "z")]
    )
    inner.pre_tokenizer = parts.Sequence([words, parts.ByteLevel(add_prefix_space=False)])
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    inner.enable_padding(length=8)
    inner.enable_truncation(64, stride=2)
    inner.add_special_tokens(["<s>"])
    text: str = inner.to_str()
    return text


def load(folder: Path) -> None:
    read_all(resolve(folder))


def read_all(checkpoint: Checkpoint) -> None:
    """Every weight, a text through the tokenizer and back, and a prompt of a conversation."""
    Model.from_checkpoint(checkpoint)
    if (tokenizer := checkpoint.tokenizer) is None:
        return
    tokenizer.decode(tokenizer.encode("abba <s> cab"))
    if checkpoint.chat_template is not None:
        tokenizer.chat([{"role": "user", "content": "ab"}])


TARGET = Target("huggingface", make, load)
