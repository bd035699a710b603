"""Tokens of the text form, and errors that point at them."""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass

from seqmix_ir.errors import IRError

__all__ = ["WORD", "Source", "Token", "quoted", "tokenize", "unquoted"]

_WIDTH = 100
_LONGEST = 2000
"""Letters of a message: it may quote a name of the text, however long that is."""
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_TOKEN = re.compile(
    rf"""(?P<space>[ \t\r\n]+ | //[^\n]*)
      | (?P<value>%(?:[A-Za-z0-9_.]+|{_STRING}))
      | (?P<name>@(?:[A-Za-z0-9_.]+|{_STRING}))
      | (?P<string>{_STRING})
      | (?P<number>[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)
      | (?P<word>{WORD.pattern})
      | (?P<symbol>->|>=|\.\.|[-+*=(){{}}\[\],:])""",
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
        if len(message) > _LONGEST:
            message = f"{message[:_LONGEST]}..."
        start = self.text.rfind("\n", 0, at) + 1
        column = at - start
        shown, place = _clipped(self.text[start:].split("\n", 1)[0].rstrip(), column)
        blank = "".join(map(_blank, shown[:place].ljust(place)))
        return IRError(
            f"{self.file}:{self.line_of(at)}:{column + 1}: {message}\n    {shown}\n    {blank}^"
        )

    def line_of(self, at: int) -> int:
        """The number of the line that a place is on, from 1."""
        return self.text.count("\n", 0, at) + 1


def _blank(character: str) -> str:
    """Blanks as wide as a character is in a terminal, for what stands below it."""
    if character == "\t":
        return character  # However wide the terminal makes it.
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return ""
    return "  " if unicodedata.east_asian_width(character) in "WF" else " "


def _clipped(line: str, column: int) -> tuple[str, int]:
    """The part of a long line around a column, and where the column is in it."""
    begin = max(0, column - _WIDTH) if len(line) > 2 * _WIDTH else 0
    end = begin + 2 * _WIDTH
    head, tail = ("..." if begin else ""), ("..." if end < len(line) else "")
    return f"{head}{line[begin:end]}{tail}", column - begin + len(head)


def quoted(name: str) -> str:
    """``name`` where it reads as a word, else in quotes."""
    return name if WORD.fullmatch(name) else json.dumps(name)


def unquoted(source: Source, token: Token, prefix: str = "") -> str:
    """What a string, or a name behind ``prefix``, says; IRError when an escape is not valid."""
    text = token.text.removeprefix(prefix)
    if not text.startswith('"'):
        return text
    try:
        found = str(json.loads(text))
    except json.JSONDecodeError as error:
        raise source.error(f"not a valid string: {error.msg}", token.at) from error
    if any("\ud800" <= letter <= "\udfff" for letter in found):
        # Python cannot write it to any file or terminal.
        raise source.error("not a valid string: half of a surrogate pair", token.at)
    return found


def tokenize(source: Source) -> list[Token]:
    """All tokens but blanks and comments; IRError at a character that starts none."""
    tokens: list[Token] = []
    at = 0
    while at < len(source.text):
        match = _TOKEN.match(source.text, at)
        if match is None:
            bad = source.text[at]
            what = "the string is not closed" if bad == '"' else f"unexpected character {bad!r}"
            raise source.error(what, at)
        kind = match.lastgroup or "space"
        if kind != "space":
            tokens.append(Token(kind, match.group(), at))
        at = match.end()
    tokens.append(Token("end", "", len(source.text)))
    return tokens
