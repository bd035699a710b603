"""An HTML page as the tests of ``seqmix ir --html`` look at it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

_VOID = {"meta", "input", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """What the tests ask of a page; it fails on tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: dict[str, str] = {}
        self._open: list[tuple[str, str]] = []
        self.inside: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        found = {key: value or "" for key, value in attributes}
        self.tags.append((tag, found))
        if "id" in found:
            assert found["id"] not in self.text, "an id occurs twice"
            self.text[found["id"]] = ""
            self.inside[found["id"]] = [i for _, i in self._open if i]
        if tag not in _VOID:
            self._open.append((tag, found.get("id", "")))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for _, name in self._open:
            if name:
                self.text[name] += data

    def rows(self, letter: str) -> list[str]:
        """Ids of the rows of one side."""
        return [i for i in self.text if re.fullmatch(rf"{letter}\d+", i)]

    def named(self, name: str) -> list[str]:
        """Ids of the rows whose op is ``name``."""
        found = [i for i in self.text if re.fullmatch(r"[cl]\d+", i)]
        return [i for i in found if f"= {name}(" in self.text[i].split(" : ")[0]]

    def classes(self, row: str) -> list[str]:
        return next(a["class"] for _, a in self.tags if a.get("id") == row).split()
