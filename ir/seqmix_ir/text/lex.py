"""Tokens of the text form, and errors that point at them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from seqmix_ir.errors import IRError

__all__ = ["Source", "Token", "tokenize"]

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+ | //[^\n]*)
      | (?P<value>%[A-Za-z0-9_.?]+)
      | (?P<name>@[A-Za-z0-9_.\-]+)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)
      | (?P<word>[A-Za-z_][A-Za-z0-9_.]*)
      | (?P<symbol>->|>=|<=|[-+*=(){}\[\],:%@])""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text, what it is, and where it starts; the end of the text is a token too."""

    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Source:
    """A text with its file name."""

    text: str
    file: str

    def error(self, message: str, at: int) -> IRError:
        """The error ``file:line:column: message`` with the line and a caret under the place."""
        line = self.text.count("\n", 0, at) + 1
        start = self.text.rfind("\n", 0, at) + 1
        shown = self.text[start:].split("\n", 1)[0]
        column = at - start
        return IRError(
            f"{self.file}:{line}:{column + 1}: {message}\n    {shown}\n    {' ' * column}^"
        )

    def line(self, at: int) -> int:
        """The number of the line that holds a place, from 1."""
        return self.text.count("\n", 0, at) + 1


def tokenize(source: Source) -> list[Token]:
    """All tokens but blanks and comments; IRError at a character that starts none."""
    tokens: list[Token] = []
    at = 0
    while at < len(source.text):
        match = _TOKEN.match(source.text, at)
        if match is None:
            raise source.error(f"unexpected character {source.text[at]!r}", at)
        kind = match.lastgroup or "space"
        if kind != "space":
            tokens.append(Token(kind, match.group(), at))
        at = match.end()
    tokens.append(Token("end", "", len(source.text)))
    return tokens
