"""Reading tokens one by one: sizes, types and literals; the parser of modules stands on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

from seqmix_ir.dims import Dim, Size, ceildiv, dim, floordiv, isqrt, maximum_size, minimum_size
from seqmix_ir.errors import IRError, did_you_mean
from seqmix_ir.text.lex import Source, Token, tokenize, unquoted
from seqmix_ir.types import MOST_AXES, TensorType, check_dtype

__all__ = ["Reader"]

T = TypeVar("T")

_DEEPEST = 64
_LONGEST = 256
"""Bounds of what is read (nesting, tokens of a size, its terms): no text takes long to refuse."""
_TERMS = 256
_LARGEST = 2**63
_FUNCTIONS: dict[str, Callable[..., Size]] = {
    "ceildiv": ceildiv,
    "floordiv": floordiv,
    "isqrt": isqrt,
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

    def fail_expected(self, what: str) -> NoReturn:
        """Raise the error that something else than ``what`` comes next."""
        self.fail(f"expected {what}, found {self._found()}")

    def ahead(self, text: str) -> bool:
        """Whether the next token reads ``text``."""
        return self.token.text == text and self.token.kind != "string"

    def take(self, text: str, what: str = "") -> Token:
        """Read exactly ``text``; ``what`` says it better in the message."""
        if not self.ahead(text):
            self.fail_expected(what or f"'{text}'")
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
            self.fail_expected(what)
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
                self.take(",", f"',' or '{close}'")
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
        start = self._next
        total = self._product(start)
        while self.token.text in ("+", "-"):
            minus = self.advance().text == "-"
            part = self._product(start)
            total = self._bounded(total - part if minus else total + part, start)
        return total

    def _product(self, start: int) -> Size:
        minus = self.take_if("-")
        first = self._factor()
        product = self._bounded(first * -1 if minus else first, start)
        while self.take_if("*"):
            product = self._bounded(product * self._factor(), start)
        return product

    def _bounded(self, size: Size, start: int) -> Size:
        terms = size.terms if isinstance(size, Dim) else (((), size),)
        large = any(abs(coefficient) > _LARGEST for _, coefficient in terms)
        if large or len(terms) > _TERMS or self._next - start > _LONGEST:
            self.fail("this size is too large to be meant", self.tokens[start])
        return size

    def _factor(self) -> Size:
        if self.token.kind == "number":
            return self.integer()
        token = self.take_kind("word", "a size: a number, a name, or a call such as min(S, 8)")
        if self.ahead("("):
            return self._call(token)
        return self.checked(lambda: dim(token.text), token)

    def _call(self, name: Token) -> Size:
        function = _FUNCTIONS.get(name.text)
        if function is None:
            near = did_you_mean(name.text, _FUNCTIONS)
            self.fail(f"unknown size function '{name.text}'{near}", name)
        start = self._next
        self.take("(")
        args = self.nested(lambda: self.listed(self.size, ")"))
        if self._next - start > _LONGEST:
            self.fail("this size is too large to be meant", name)
        count = {"ceildiv": 2, "floordiv": 2, "isqrt": 1}.get(name.text)
        if not args or count not in (None, len(args)):
            wanted = "2 sizes" if count == 2 else "1 size" if count else "at least one size"
            self.fail(f"'{name.text}' takes {wanted}, got {len(args)}", name)
        return self.checked(lambda: function(*args), name)

    def checked(self, make: Callable[[], T], token: Token) -> T:
        """What ``make`` returns; its IRError, which knows no place, is raised at ``token``."""
        try:
            return make()
        except IRError as error:
            raise self.source.error(str(error), token.at) from error

    def type(self) -> TensorType:
        """A tensor type such as ``f32[B, 3]``."""
        token = self.take_kind("word", "a dtype")
        dtype = self.checked(lambda: check_dtype(token.text), token)
        start = self.token
        self.take("[")
        shape = self.listed(self.size, "]")
        if len(shape) > MOST_AXES:
            self.fail(f"a tensor has at most {MOST_AXES} axes, found {len(shape)}", start)
        return TensorType(dtype, tuple(shape))

    def literal(self) -> object:
        """An attribute value."""
        if self.take_if("["):
            return tuple(self.nested(lambda: self.listed(self.literal, "]")))
        token = self.token
        if token.kind == "string":
            return self.string()
        if token.text in ("true", "false"):
            return self.advance().text == "true"
        if token.kind == "word" and self.tokens[self._next + 1].text == "[":
            return self.type()
        if token.kind not in ("number", "word") and token.text != "-":
            self.fail_expected("a value: a number, a size, a string, a type, or a list in [ ]")
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
        return self.size()

    def string(self) -> str:
        """A quoted string."""
        return unquoted(self.source, self.take_kind("string", "a quoted string"))

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
