"""Bytes as tokens, and a ``tokenizer.json`` that says so to whoever runs the model."""

from __future__ import annotations

import json

__all__ = ["BYTES", "byte_names", "byte_tokenizer"]

BYTES = 256

PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
"""Bytes that stand for themselves in the names of byte-level tokens; see :func:`byte_names`."""


def byte_tokenizer() -> str:
    """A ``tokenizer.json``: byte-level BPE without merges, whose ids are the bytes themselves."""
    content: dict[str, object] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        },
        "model": {
            "type": "BPE",
            "vocab": {name: byte for byte, name in enumerate(byte_names())},
            "merges": [],
        },
    }
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def byte_names() -> list[str]:
    """The character that byte-level tokenizers write for every byte (Radford et al. 2019).

    Printable ones of Latin-1 stand for themselves, the others for the characters from 256 on.
    """
    names, others = [], BYTES
    for byte in range(BYTES):
        if byte in PRINTABLE:
            names.append(chr(byte))
        else:
            names.append(chr(others))
            others += 1
    return names
