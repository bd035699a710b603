"""An environment of jinja2 in which a template of somebody else can do little, and not for long.

jinja2's own sandbox keeps a template from reaching Python. Here it has an amount of work as well:
turns of loops, calls, operations and what comes of them take from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, ItemsView, KeysView, Mapping, ValuesView
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

__all__ = ["ChatSandbox"]

WORK = 500_000
"""Steps of one conversation, two or three seconds; templates take some fifty for each message."""
LENGTH = 5_000_000
"""Characters of a text and entries of a list; the longest contexts are about that."""
NUMBER = 100_000
"""The largest whole number that is given to a call; jinja2 has the same for ``range``."""
CHARACTERS, ENTRIES = 1000, 10
"""How many of a result are a step."""
SHOWING = (
    "capitalize", "e", "escape", "float", "format", "indent", "int", "join", "lower", "replace",
    "safe", "string", "title", "trim", "truncate", "upper", "wordcount",
)  # fmt: skip
"""Filters that make text of what they are given, however often it holds the same again."""
PASSING = (
    "abs", "count", "d", "default", "dictsort", "first", "items", "last", "length", "list", "map",
    "max", "min", "reject", "rejectattr", "reverse", "round", "select", "selectattr", "sort",
    "unique",
)  # fmt: skip
"""The other filters that templates of conversations use."""
GLOBALS = ("range", "dict", "namespace", "cycler", "joiner")
METHODS = frozenset(("expandtabs", "translate", "encode"))
"""Methods of text that no such template needs, and that make far more of it."""
WIDE = re.compile(r"\d{6}|\*|\{[^}]*\{")


class ChatSandbox(ImmutableSandboxedEnvironment):
    """One conversation's environment: its work counts from when it is made."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        """The names that templates written for transformers expect."""
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
            finalize=self.shown,
        )
        self.left = WORK
        known = {name: self.filters[name] for name in (*SHOWING, *PASSING)}
        self.filters = {name: self._bounded(name, held) for name, held in known.items()}
        self.filters["tojson"] = self._to_json
        self.globals = {name: self.globals[name] for name in GLOBALS}
        self.globals |= {"raise_exception": _refuse, "strftime_now": _strftime_now}

    def compiled(self, source: str) -> Any:
        """A template whose loops count their turns, and whose joined texts are measured."""
        tree = _Counting().visit(self.parse(source))
        return self.from_string(tree.set_lineno(1).set_environment(self))

    def tick(self, steps: int = 1) -> str:
        """Take from the work that is left; TemplateError when it is spent."""
        self.left -= steps
        if self.left < 0:
            raise TemplateError(f"it takes more than {WORK} steps")
        return ""

    def sized(self, value: Any) -> Any:
        """A value, once it is known to be no longer than :data:`LENGTH`."""
        self.tick(1 + _checked(_size(value)) // (CHARACTERS if isinstance(value, str) else ENTRIES))
        return value

    def shown(self, value: Any) -> Any:
        """A value, once it is known that it is short when all that it holds is written out."""
        size, entries, waiting = 0, 0, [value]
        while waiting:
            held = waiting.pop()
            inner = _inside(held)
            size, entries = size + (_size(held) or 1), entries + len(inner)
            _checked(max(size, entries * ENTRIES))
            waiting += inner
        self.tick(1 + size // CHARACTERS + entries // ENTRIES)
        return value

    def joined(self, *parts: Any) -> str:
        """The parts as one text."""
        return str(self.sized("".join(str(part) for part in self.shown(list(parts)))))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An operation whose result is short."""
        if operator == "%" and isinstance(left, str):
            _check_form(left)
            self.shown(right)
        if operator == "**":
            _checked(_size(left) * _size(right) if _size(left) > 1 else 0)
            _checked(_size(left) * abs(right) if isinstance(right, int) else 0)
        if operator in "+*":
            _checked(_repeated(left, right) if operator == "*" else _size(left) + _size(right))
        return self.sized(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """A call with small numbers, whose result is short."""
        made = getattr(__obj, "__wrapped__", __obj)  # jinja2 wraps the methods that format.
        text = getattr(made, "__self__", None)
        _check_numbers((*args, *kwargs.values()))
        if isinstance(text, str):
            __self.shown([*args, *kwargs.values()])
            _check_method(text, made.__name__, args)
        return __self.sized(super().call(__context, __obj, *args, **kwargs))

    def _bounded(self, name: str, held: Callable[..., Any]) -> Callable[..., Any]:
        """A filter with small numbers, whose input is short where it becomes text."""
        first = 1 if hasattr(held, "jinja_pass_arg") else 0

        def bounded(*args: Any, **kwargs: Any) -> Any:
            machinery, given = args[:first], list(args[first:])
            rest = (*given[1:], *kwargs.values())
            _check_numbers(rest)
            if name == "join":
                given[0] = list(self.sized(given[0]))
            if name in SHOWING:
                self.shown([given[0], *rest])
                _check_product(name, given[0], rest)
            if name == "format":
                _check_form(str(given[0]))
            return self.sized(held(*machinery, *given, **kwargs))

        if first:
            bounded.jinja_pass_arg = held.jinja_pass_arg  # type: ignore[attr-defined]
        return bounded

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Plain JSON; jinja2's own filter is for HTML, sorts keys and escapes ``<``."""
        self.shown([value, indent, separators])
        text = json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=None if indent is None else min(int(indent), 16),
            separators=separators,
            sort_keys=sort_keys,
        )
        return str(self.sized(text))


class _Counting(NodeTransformer):
    """Puts a step into every loop and macro, and a measure around every ``~``."""

    def visit_For(self, node: Any) -> Any:  # noqa: N802
        """A loop; one with a condition counts what it passes over as well."""
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_of_environment("tick")))
        if node.test is not None:
            node.test = nodes.And(nodes.Not(_of_environment("tick")), node.test)
        return node

    def visit_Macro(self, node: Any) -> Any:  # noqa: N802
        """A macro, which may call itself."""
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_of_environment("tick")))
        return node

    def visit_Concat(self, node: Any) -> Any:  # noqa: N802
        """Texts joined by ``~``."""
        self.generic_visit(node)
        return _of_environment("joined", node.nodes)


def _of_environment(name: str, arguments: list[Any] | None = None) -> Any:
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments or [], [], None, None)


def _size(value: Any) -> int:
    """Characters, entries, or digits in base 2 of a whole number."""
    if isinstance(value, int):
        return value.bit_length()
    return len(value) if isinstance(value, str | bytes | list | tuple | Mapping) else 0


def _inside(value: Any) -> list[Any]:
    """What is written out where a value is."""
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset | KeysView | ValuesView | ItemsView):
        return list(value)
    # A namespace of jinja2 shows what it was given.
    return list(getattr(value, "_Namespace__attrs", {}).values())


def _repeated(left: Any, right: Any) -> int:
    """How long a product is: numbers add their digits, a text or list is repeated."""
    if isinstance(left, int) and isinstance(right, int):
        return _size(left) + _size(right)
    number, other = (left, right) if isinstance(left, int) else (right, left)
    return _size(other) * max(number, 0) if isinstance(number, int) else 0


def _checked(size: int) -> int:
    if size > LENGTH:
        raise TemplateError(f"it makes more than {LENGTH} characters or entries")
    return size


def _check_numbers(values: tuple[Any, ...]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > NUMBER:
            raise TemplateError(f"it calls something with a number beyond {NUMBER}")


def _check_form(text: str) -> None:
    if WIDE.search(text):
        raise TemplateError("it formats to a width that is long or not written out")


def _check_method(text: str, name: str, args: tuple[Any, ...]) -> None:
    if name in METHODS:
        raise TemplateError(f"it calls '{name}' of a text, which no template needs")
    if name in ("format", "format_map"):
        _check_form(text)
    if name in ("join", "replace"):
        value, rest = (args[0], (text,)) if name == "join" and args else (text, args)
        _check_product(name, value, rest)


def _check_product(name: str, value: Any, rest: tuple[Any, ...]) -> None:
    """What is put between entries, in place of each part, or in front of each line is short."""
    if name not in ("join", "replace", "indent"):
        return
    lengths = [_size(v) if isinstance(v, str) else abs(v) for v in rest if isinstance(v, str | int)]
    times = _size(value) + 1
    if name == "replace":
        times = str(value).count(str(rest[0])) if rest else 0
    elif name == "indent":
        times = str(value).count("\n") + 1
    _checked(times * max(lengths, default=0))


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    _check_form(form)
    return datetime.now().strftime(form[:CHARACTERS])
