"""Reading tokens one by one: sizes, types and literals; the parser of modules stands on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NoReturn, TypeVar

from seqmix_ir.dims import Dim, Size, ceildiv, dim, floordiv, maximum_size, minimum_size
from seqmix_ir.errors import IRError
from seqmix_ir.text.lex import Source, Token, tokenize
from seqmix_ir.types import DTYPES, TensorType, check_dtype

__all__ = ["Reader"]

T = TypeVar("T")

_DEEPEST = 64
_FUNCTIONS: dict[str, Callable[..., Size]] = {
    "ceildiv": ceildiv,
    "floordiv": floordiv,
    "min": minimum_size,
    "max": maximum_size,
}
_FLOATS = {"inf": float("inf"), "nan": float("nan")}


class Reader:
    """A cursor over tokens. Every failure is an IRError with a caret."""

    def __init__(self, text: str, file: str) -> None:
        """Split ``text`` into tokens; ``file`` names it in messages."""
        self.source = Source(text, file)
        self.tokens = tokenize(self.source)
        self._next = 0
        self._depth = 0

    @property
    def token(self) -> Token:
        """The token to be read next."""
        return self.tokens[self._next]

    def fail(self, message: str, token: Token | None = None) -> NoReturn:
        """Raise the error at ``token``, or at the one to be read next."""
        raise self.source.error(message, (token or self.token).at)

    def ahead(self, text: str) -> bool:
        """Whether the next token reads ``text``."""
        return self.token.text == text and self.token.kind != "string"

    def take(self, text: str) -> Token:
        """Read exactly ``text``."""
        if not self.ahead(text):
            self.fail(f"expected '{text}', found {self._found()}")
        return self.advance()

    def take_if(self, text: str) -> bool:
        """Read ``text`` if it comes next."""
        found = self.ahead(text)
        if found:
            self.advance()
        return found

    def take_kind(self, kind: str, what: str) -> Token:
        """Read a token of one kind."""
        if self.token.kind != kind:
            self.fail(f"expected {what}, found {self._found()}")
        return self.advance()

    def advance(self) -> Token:
        """Read whatever comes next."""
        token = self.token
        if token.kind != "end":
            self._next += 1
        return token

    def listed(self, item: Callable[[], T], close: str) -> list[T]:
        """Items between commas up to and including ``close``."""
        items: list[T] = []
        while not self.take_if(close):
            if items:
                self.take(",")
            items.append(item())
        return items

    def integer(self) -> int:
        """A whole number."""
        sign = -1 if self.take_if("-") else 1
        token = self.take_kind("number", "a whole number")
        if not token.text.isdigit() or len(token.text) > 19:
            self.fail("expected a whole number of at most 19 digits", token)
        return sign * int(token.text)

    def size(self) -> Size:
        """A size such as ``2*B*S + P - 1``."""
        start = self.token
        try:
            total = self._product()
            while self.token.text in ("+", "-"):
                minus = self.advance().text == "-"
                total = total - self._product() if minus else total + self._product()
        except IRError as error:
            if str(error).startswith(self.source.file):
                raise
            self.fail(str(error), start)
        return total

    def _product(self) -> Size:
        product: Size = -1 if self.take_if("-") else 1
        product = product * self._factor()
        while self.take_if("*"):
            product = product * self._factor()
        return product

    def _factor(self) -> Size:
        if self.token.kind == "number":
            return self.integer()
        token = self.take_kind("word", "a size")
        if self.ahead("(") and token.text in _FUNCTIONS:
            return self._call(token)
        if "." in token.text:
            self.fail(f"'{token.text}' is no dimension name", token)
        return dim(token.text)

    def _call(self, name: Token) -> Size:
        self.take("(")
        args = self.nested(lambda: self.listed(self.size, ")"))
        if not args or (name.text.endswith("div") and len(args) != 2):
            self.fail(f"'{name.text}' got {len(args)} sizes", name)
        return _FUNCTIONS[name.text](*args)

    def type(self) -> TensorType:
        """A tensor type such as ``f32[B, 3]``."""
        token = self.take_kind("word", "a dtype")
        try:
            dtype = check_dtype(token.text)
        except IRError as error:
            self.fail(str(error), token)
        self.take("[")
        return TensorType(dtype, tuple(self.listed(self.size, "]")))

    def literal(self) -> object:
        """An attribute value."""
        if self.take_if("["):
            return tuple(self.nested(lambda: self.listed(self.literal, "]")))
        token = self.token
        if token.kind == "string":
            return self.string()
        if token.text in ("true", "false"):
            return self.advance().text == "true"
        if token.text in DTYPES:
            return self.type()
        return self._number()

    def _number(self) -> object:
        """A float (with a point, an exponent, ``inf`` or ``nan``), or else a size."""
        here = self._next
        sign = -1.0 if self.take_if("-") else 1.0
        token = self.token
        if token.text in _FLOATS:
            return sign * _FLOATS[self.advance().text]
        if token.kind == "number" and not token.text.isdigit():
            return sign * float(self.advance().text)
        self._next = here
        size = self.size()
        return size if isinstance(size, int | Dim) else int(size)

    def string(self) -> str:
        """A quoted string."""
        token = self.take_kind("string", "a quoted string")
        try:
            return str(json.loads(token.text))
        except json.JSONDecodeError as error:
            self.fail(f"not a valid string: {error.msg}", token)

    def nested(self, read: Callable[[], T]) -> T:
        """Read something that may hold itself; IRError when it nests too deeply."""
        self._depth += 1
        if self._depth > _DEEPEST:
            self.fail(f"nested more than {_DEEPEST} deep")
        result = read()
        self._depth -= 1
        return result

    def _found(self) -> str:
        return f"'{self.token.text}'" if self.token.kind != "end" else "the end of the text"
