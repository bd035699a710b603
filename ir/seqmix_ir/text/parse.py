"""Parsing: text to modules. Errors show file, line, column, the line itself and a caret."""

from __future__ import annotations

import dataclasses

from seqmix_ir.defn import OpDef
from seqmix_ir.errors import IRError, did_you_mean
from seqmix_ir.graph import UNKNOWN, Block, DimInfo, Graph, Module, Op, Value
from seqmix_ir.ops import default_table
from seqmix_ir.table import OpTable
from seqmix_ir.text.lex import Token
from seqmix_ir.text.reader import Reader
from seqmix_ir.text.show import FORMAT
from seqmix_ir.types import Loc

__all__ = ["parse"]

Scope = dict[str, Value]


def parse(text: str, table: OpTable | None = None, file: str = "<text>") -> Module:
    """The module that ``text`` spells; it is not verified.

    ``table`` knows the ops, by default the core ones. Raises IRError for text that is not
    well-formed, and for ops, attributes, values and op versions that are not known.
    """
    return _Parser(Reader(text, file), table or default_table()).module()


class _Parser:
    def __init__(self, reader: Reader, table: OpTable) -> None:
        self._r = reader
        self._table = table

    def module(self) -> Module:
        """The whole text."""
        r = self._r
        r.take("seqmix")
        version = r.token
        if r.integer() != FORMAT:
            r.fail(
                f"text format {version.text} is not {FORMAT}; use the seqmix that wrote it", version
            )
        if r.take_if("uses"):
            self._used()
            while r.take_if(","):
                self._used()
        r.take("module")
        name = r.take_kind("name", "a module name such as @model").text[1:]
        r.take("{")
        graphs: list[Graph] = []
        while not r.take_if("}"):
            graphs.append(self._graph())
        r.take_kind("end", "the end of the text")
        return Module(name, tuple(graphs))

    def _used(self) -> None:
        """``name@version``: the op must be known in that version or a later one."""
        r = self._r
        token = r.take_kind("word", "an op name")
        known = self._lookup(token).version
        mark = r.take_kind("name", "@ and a version")
        if not mark.text[1:].isdigit():
            r.fail("expected a version number", mark)
        if int(mark.text[1:]) > known:
            r.fail(
                f"op '{token.text}' has version {mark.text[1:]} here, this seqmix knows {known}; "
                "install a newer one",
                mark,
            )

    def _lookup(self, token: Token) -> type[OpDef]:
        try:
            return self._table.lookup(token.text)
        except IRError as error:
            self._r.fail(str(error), token)

    def _graph(self) -> Graph:
        r = self._r
        r.take("graph")
        name = r.take_kind("name", "a graph name such as @forward").text[1:]
        scope: Scope = {}
        params = self._params(scope, named=True)
        dims = r.listed(self._dim, ")") if r.take_if("dims") and r.take("(") else []
        r.take("->")
        r.take("(")
        outputs = r.listed(lambda: r.take_kind("word", "an output name").text, ")")
        r.take("{")
        return Graph(name, self._block(params, scope), tuple(outputs), tuple(dims))

    def _dim(self) -> DimInfo:
        r = self._r
        name = r.take_kind("word", "a dimension name").text
        r.take(">=")
        low = r.integer()
        high = r.integer() if r.take_if("<=") else None
        return DimInfo(name, low, high, self._multiple())

    def _multiple(self) -> int:
        """``% n``; the lexer reads ``%n`` without a blank as a value."""
        r = self._r
        token = r.token
        if token.kind == "value" and token.text[1:].isdigit():
            r.advance()
            return int(token.text[1:])
        return r.integer() if r.take_if("%") else 1

    def _params(self, scope: Scope, *, named: bool) -> tuple[Value, ...]:
        r = self._r
        r.take("(")

        def param() -> Value:
            token = r.take_kind("value", "a value such as %x")
            r.take(":")
            hint = token.text[1:]
            return self._define(token, scope, Value(r.type(), hint if named else _hint(hint)))

        return tuple(r.listed(param, ")"))

    def _define(self, token: Token, scope: Scope, value: Value) -> Value:
        if token.text in scope:
            self._r.fail(f"{token.text} is defined twice", token)
        scope[token.text] = value
        return value

    def _block(self, params: tuple[Value, ...], scope: Scope) -> Block:
        """What stands after the opening brace."""
        r = self._r
        ops: list[Op] = []
        while not r.ahead("return"):
            ops.append(self._op(scope))
        r.take("return")
        results = [] if r.ahead("}") else [self._use(scope)]
        while r.take_if(","):
            results.append(self._use(scope))
        r.take("}")
        return Block(params, tuple(ops), tuple(results))

    def _use(self, scope: Scope) -> Value:
        token = self._r.take_kind("value", "a value such as %x")
        if token.text not in scope:
            near = did_you_mean(token.text, scope)
            self._r.fail(f"{token.text} is not defined before this place{near}", token)
        return scope[token.text]

    def _operand(self, scope: Scope) -> Value | None:
        return None if self._r.take_if("none") else self._use(scope)

    def _op(self, scope: Scope) -> Op:
        r = self._r
        left = [r.take_kind("value", "a result such as %0, or 'return'")]
        while r.take_if(","):
            left.append(r.take_kind("value", "a result"))
        r.take("=")
        name = r.take_kind("word", "an op name")
        cls = self._lookup(name)
        r.take("(")
        operands = tuple(r.listed(lambda: self._operand(scope), ")"))
        defn = self._defn(cls, name)
        body = self._body() if r.take_if("body") else None
        r.take(":")
        types = [r.type()]
        while r.take_if(","):
            types.append(r.type())
        if len(types) != len(left):
            r.fail(f"'{cls.name}' has {len(left)} results here and {len(types)} types", name)
        loc = self._loc() if r.ahead("loc") else UNKNOWN
        results = tuple(
            self._define(token, scope, Value(type, _hint(token.text[1:])))
            for token, type in zip(left, types, strict=True)
        )
        return Op(defn, operands, results, body, loc)

    def _body(self) -> Block:
        def read() -> Block:
            scope: Scope = {}
            params = self._params(scope, named=False)
            self._r.take("{")
            return self._block(params, scope)

        return self._r.nested(read)

    def _defn(self, cls: type[OpDef], name: Token) -> OpDef:
        """The op with its attributes, each checked to be there and of the declared type."""
        r = self._r
        given: dict[str, object] = {}
        places: dict[str, Token] = {}
        for key, token, value in r.listed(self._attribute, "}") if r.take_if("{") else ():
            given[key], places[key] = value, token
        fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for key, token in places.items():
            if key not in fields:
                r.fail(f"'{cls.name}' has no attribute '{key}'{did_you_mean(key, fields)}", token)
        for key, field in fields.items():
            if key not in given and field.default is dataclasses.MISSING:
                r.fail(f"'{cls.name}' needs the attribute '{key}'", name)
        try:
            return cls(**{k: _coerced(v, fields[k].type) for k, v in given.items()})
        except (IRError, TypeError, ValueError) as error:
            r.fail(f"'{cls.name}' does not take these attributes: {error}", name)

    def _attribute(self) -> tuple[str, Token, object]:
        key = self._r.take_kind("word", "an attribute name")
        self._r.take("=")
        return key.text, key, self._r.literal()

    def _loc(self) -> Loc:
        r = self._r
        r.take("loc")
        r.take("(")
        steps = [r.string()]
        while r.take_if("from"):
            steps.append(r.string())
        r.take(")")
        loc: Loc | None = None
        for text in reversed(steps):
            loc = Loc(text, loc)
        return loc or UNKNOWN


def _hint(name: str) -> str:
    """Numbers are only places in the text; words are hints."""
    return "" if name.isdigit() else name


def _coerced(value: object, declared: object) -> object:
    """Whole numbers may stand for floats."""
    return float(value) if isinstance(value, int) and declared in (float, "float") else value
