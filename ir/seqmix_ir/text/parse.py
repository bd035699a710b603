"""Parsing: text to modules. Errors show file, line, column, the line itself and a caret."""

from __future__ import annotations

import dataclasses
from typing import Any

from seqmix_ir.defn import OpDef
from seqmix_ir.dims import dim
from seqmix_ir.errors import IRError, did_you_mean
from seqmix_ir.graph import UNKNOWN, Block, DimInfo, Graph, Module, Op, Value
from seqmix_ir.ops import default_table
from seqmix_ir.table import OpTable
from seqmix_ir.text.attributes import fit_attribute
from seqmix_ir.text.lex import Token, quoted, unquoted
from seqmix_ir.text.reader import Reader
from seqmix_ir.text.show import FORMAT
from seqmix_ir.types import Loc

__all__ = ["parse"]

Scope = dict[str, Value]

_LOCATIONS = 256
"""Steps from an op to where it came from: decompositions are some ten deep."""


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
        self._around: list[Scope] = []
        self._first: dict[Value, Token] = {}

    def module(self) -> Module:
        """The whole text."""
        r = self._r
        r.take("seqmix", f"a header such as 'seqmix {FORMAT}'")
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
        name = self._name("a module name such as @model")
        r.take("{")
        graphs: list[Graph] = []
        while not r.take_if("}"):
            if not r.ahead("graph"):
                r.fail_expected("'graph', or '}' at the end of the module")
            graphs.append(self._graph())
        r.take_kind("end", "the end of the text")
        return Module(name, tuple(graphs))

    def _name(self, what: str) -> str:
        return unquoted(self._r.source, self._r.take_kind("name", what), "@")

    def _output(self) -> str:
        r = self._r
        is_string = r.token.kind == "string"
        return r.string() if is_string else r.take_kind("word", "an output name").text

    def _used(self) -> None:
        """``name@version``: the op must be known in that version or a later one."""
        r = self._r
        token = r.take_kind("word", "an op name")
        known = self._lookup(token).version
        mark = r.take_kind("name", "@ and a version")
        if not mark.text[1:].isdigit() or len(mark.text) > 10:
            r.fail("expected a version number", mark)
        if int(mark.text[1:]) > known:
            r.fail(
                f"op '{token.text}' has version {mark.text[1:]} here, this seqmix knows {known}; "
                "install a newer one",
                mark,
            )

    def _lookup(self, token: Token) -> type[OpDef]:
        return self._r.checked(lambda: self._table.lookup(token.text), token)

    def _graph(self) -> Graph:
        r = self._r
        r.take("graph")
        name = self._name("a graph name such as @forward")
        scope: Scope = {}
        params = self._params(scope)
        dims = r.listed(self._dim, ")") if r.take_if("dims") and r.take("(") else []
        r.take("->")
        r.take("(")
        outputs = r.listed(self._output, ")")
        r.take("{")
        return Graph(name, self._block(params, scope), tuple(outputs), tuple(dims))

    def _dim(self) -> DimInfo:
        """``S >= 1`` or ``S in 1..4096``, then perhaps ``multiple of 64``."""
        r = self._r
        token = r.take_kind("word", "a dimension name")
        r.checked(lambda: dim(token.text), token)
        high: int | None = None
        if r.take_if("in"):
            low = r.integer()
            r.take("..")
            high = r.integer()
        elif r.take_if(">="):
            low = r.integer()
        else:
            r.fail(f"expected '>= least' or 'in least..most' after '{token.text}'")
        step = r.integer() if r.take_if("multiple") and r.take("of") else 1
        return DimInfo(token.text, low, high, step)

    def _params(self, scope: Scope) -> tuple[Value, ...]:
        r = self._r
        r.take("(")

        def param() -> Value:
            token = r.take_kind("value", "a value such as %x")
            r.take(":")
            return self._define(token, scope, Value(r.type(), self._hint(token)))

        return tuple(r.listed(param, ")"))

    def _define(self, token: Token, scope: Scope, value: Value) -> Value:
        key = self._key(token)
        if key in scope:
            line = self._r.source.line_of(self._first[scope[key]].at)
            self._r.fail(
                f"{token.text} is defined twice, first on line {line}; choose another name", token
            )
        scope[key] = value
        self._first[value] = token
        return value

    def _hint(self, token: Token) -> str:
        return "" if _is_place(token) else unquoted(self._r.source, token, "%")

    def _key(self, token: Token) -> str:
        """One spelling for every value, quoted or not."""
        if _is_place(token):
            return token.text
        return f"%{quoted(unquoted(self._r.source, token, '%'))}"

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
        if (value := scope.get(self._key(token))) is None:
            hint = self._hidden(token) or did_you_mean(token.text, scope)
            self._r.fail(f"{token.text} is not defined before this place{hint}", token)
        return value

    def _hidden(self, token: Token) -> str:
        """What to do about a value that stands around a body, if that is what is meant."""
        if not any(self._key(token) in scope for scope in self._around):
            return ""
        return (
            "; a body sees its own values only: make it an operand of the op and a parameter of "
            "the body"
        )

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
        body = self._body(scope) if r.take_if("body") else None
        r.take(":", "':' and the type of every result")
        types = [r.type()]
        while r.take_if(","):
            types.append(r.type())
        if len(types) != len(left):
            r.fail(f"'{cls.name}' has {len(left)} results here but {len(types)} types", name)
        loc = self._loc() if r.ahead("loc") else UNKNOWN
        results = tuple(
            self._define(token, scope, Value(type, self._hint(token)))
            for token, type in zip(left, types, strict=True)
        )
        return Op(defn, operands, results, body, loc)

    def _body(self, around: Scope) -> Block:
        def read() -> Block:
            scope: Scope = {}
            params = self._params(scope)
            self._r.take("{")
            return self._block(params, scope)

        self._around.append(around)
        body = self._r.nested(read)
        self._around.pop()
        return body

    def _defn(self, cls: type[OpDef], name: Token) -> OpDef:
        """The op with its attributes, each checked to be there and of the declared type."""
        r = self._r
        given: dict[str, object] = {}
        fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for token, value in r.listed(self._attribute, "}") if r.take_if("{") else ():
            key = token.text
            if key not in fields:
                r.fail(f"'{cls.name}' has no attribute '{key}'{did_you_mean(key, fields)}", token)
            if key in given:
                r.fail(f"attribute '{key}' is given twice", token)
            given[key] = self._fitted(token, value, fields[key].type)
        for key, field in fields.items():
            if key not in given and not _has_default(field):
                r.fail(f"'{cls.name}' needs the attribute '{key}'", name)
        try:
            return cls(**given)
        except (IRError, TypeError, ValueError) as error:
            r.fail(f"'{cls.name}' does not take these attributes: {error}", name)

    def _fitted(self, token: Token, value: object, declared: object) -> object:
        return self._r.checked(lambda: fit_attribute(token.text, value, declared), token)

    def _attribute(self) -> tuple[Token, object]:
        key = self._r.take_kind("word", "an attribute name")
        self._r.take("=")
        return key, self._r.literal()

    def _loc(self) -> Loc:
        r = self._r
        r.take("loc")
        r.take("(")
        steps = [r.string()]
        while r.take_if("from"):
            steps.append(r.string())
        r.take(")")
        if len(steps) > _LOCATIONS:
            r.fail(f"a location has at most {_LOCATIONS} steps, found {len(steps)}")
        loc: Loc | None = None
        for text in reversed(steps):
            loc = Loc(text, loc)
        return loc or UNKNOWN


def _is_place(token: Token) -> bool:
    """Numbers are only places in the text; words and what is quoted are names."""
    return token.text[1:].isdigit()


def _has_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing
