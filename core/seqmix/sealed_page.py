"""What a web page needs that is one file and may load nothing: its policy, its data, its assets."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any

__all__ = ["asset", "content_policy", "script_data"]


def asset(package: str, name: str) -> str:
    """A text file of a package, such as a style."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def content_policy(style: str, script: str) -> str:
    """Nothing from anywhere: only the style and the script of this page, by their hashes."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def script_data(content: Any, *, sort_keys: bool = False) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(content, separators=(",", ":"), sort_keys=sort_keys)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
