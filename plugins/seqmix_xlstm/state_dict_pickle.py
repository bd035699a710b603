"""The pickle of a state dict, read without unpickling anything.

A pickle is a program. The few instructions that a state dict consists of are carried out here, on
dictionaries, lists, tuples, texts, numbers and descriptions of tensors; any other is refused, and
nothing is ever looked up or called.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["STORAGES", "DescribedStorage", "DescribedTensor", "run_pickle"]

DICTIONARY = "collections.OrderedDict"
TENSOR, PARAMETER = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter"
NAMES = (DICTIONARY, TENSOR, PARAMETER)
SHOWN = 300
STORAGES = {
    "DoubleStorage": ("f64", 8),
    "FloatStorage": ("f32", 4),
    "HalfStorage": ("f16", 2),
    "BFloat16Storage": ("bf16", 2),
    "LongStorage": ("i64", 8),
    "IntStorage": ("i32", 4),
    "ShortStorage": ("i16", 2),
    "CharStorage": ("i8", 1),
    "ByteStorage": ("u8", 1),
    "BoolStorage": ("bool", 1),
}
"""dtype and bytes of an element; only the first four are taken as weights."""


@dataclass(frozen=True)
class DescribedStorage:
    """The memory that a tensor lies in, before it is known to be there."""

    kind: str
    key: str
    elements: int


@dataclass(frozen=True)
class DescribedTensor:
    """A tensor, before its memory is known to be there; offset and strides count elements."""

    storage: DescribedStorage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class _Global:
    """What stands for a class or function of Python: its name."""

    name: str


class _Mark:
    """Where the arguments of an instruction begin."""


def run_pickle(pickle: bytes) -> Any:
    """What a pickle makes; ValueError for an instruction that no state dict needs.

    What is damaged raises whatever it likes: IndexError, KeyError, TypeError.
    """
    return _Machine().run(pickle)


class _Machine:
    """Carries out the instructions of a pickle that state dicts consist of."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, pickle: bytes) -> Any:
        """What the pickle leaves; ValueError for an instruction that is none of these."""
        for instruction, argument, _ in pickletools.genops(pickle):
            name = instruction.name
            if name == "STOP":
                return self.stack.pop()
            if name in VALUES:
                self.stack.append(argument)
            elif (step := STEPS.get(name)) is not None:
                step(self, argument)
            elif name not in IGNORED:
                raise ValueError(f"the pickle does more than hold tensors: {name}")
        raise ValueError("the pickle has no end")

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self.stack.append(value)

    def marked(self) -> list[Any]:
        """What lies above the last mark."""
        at = len(self.stack) - 1
        while not isinstance(self.stack[at], _Mark):
            at -= 1
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def tuple_of(self, count: int) -> None:
        """The last values as one tuple."""
        found = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.push(found)

    def remember(self, key: int | None) -> None:
        """Keep the last value under a number, the next one where none is given."""
        self.memo[len(self.memo) if key is None else key] = self.stack[-1]

    def items(self, pairs: list[Any]) -> None:
        """Keys and values in turn, into the dictionary below."""
        held = self.stack[-1]
        if not isinstance(held, dict) or len(pairs) % 2:
            raise ValueError("the pickle puts entries where no dictionary is")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(key, str | int):
                raise ValueError(f"expected names as keys, found {type(key).__name__}")
            held[key] = value

    def appended(self, values: list[Any]) -> None:
        """Values onto the list below."""
        if not isinstance(self.stack[-1], list):
            raise ValueError("the pickle appends where no list is")
        self.stack[-1] += values

    def named(self, name: str) -> None:
        """A class or function of Python: known by its name, never looked up."""
        if name not in NAMES and name.removeprefix("torch.") not in STORAGES:
            raise ValueError(f"the pickle names {name[:SHOWN]}, which no state dict needs")
        self.push(_Global(name))

    def named_by_stack(self) -> None:
        """As :meth:`named`, with module and name on the stack."""
        name, module = self.stack.pop(), self.stack.pop()
        self.named(f"{module}.{name}")

    def storage(self) -> None:
        """The memory that a tuple describes: kind, key and number of elements."""
        _, kind, key, _, elements = self.stack.pop()
        if not isinstance(kind, _Global) or type(key) is not str or type(elements) is not int:
            raise ValueError("the pickle describes no memory of tensors")
        self.push(DescribedStorage(kind.name.removeprefix("torch."), key, elements))

    def called(self) -> None:
        """What the functions that are known would make of their arguments."""
        arguments, function = self.stack.pop(), self.stack.pop()
        name = function.name if isinstance(function, _Global) else ""
        if name == DICTIONARY and not arguments:
            self.push({})
        elif name == PARAMETER and isinstance(arguments[0], DescribedTensor):
            self.push(arguments[0])
        elif name == TENSOR and isinstance(arguments[0], DescribedStorage):
            storage, offset, shape, strides, *_ = arguments
            sizes = _naturals(*shape), _naturals(*strides)
            self.push(DescribedTensor(storage, _naturals(offset)[0], *sizes))
        else:
            raise ValueError(f"the pickle calls {name or type(function).__name__}")

    def built(self) -> None:
        """Attributes of a dictionary, which are those of torch and no matter here."""
        self.stack.pop()
        if not isinstance(self.stack[-1], dict):
            raise ValueError("the pickle gives attributes to what is no dictionary")


def _naturals(*values: Any) -> tuple[int, ...]:
    if any(type(value) is not int or not 0 <= value < 2**63 for value in values):
        raise ValueError(f"expected numbers >= 0 as sizes, found {str(values)[:SHOWN]}")
    return values


NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
VALUES = frozenset((*NUMBERS, "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"))
IGNORED = frozenset(("PROTO", "FRAME"))
STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "MARK": lambda m, _: m.push(_Mark()),
    "TUPLE": lambda m, _: m.push(tuple(m.marked())),
    "TUPLE1": lambda m, _: m.tuple_of(1),
    "TUPLE2": lambda m, _: m.tuple_of(2),
    "TUPLE3": lambda m, _: m.tuple_of(3),
    "BINPUT": lambda m, key: m.remember(key),
    "LONG_BINPUT": lambda m, key: m.remember(key),
    "MEMOIZE": lambda m, _: m.remember(None),
    "BINGET": lambda m, key: m.push(m.memo[key]),
    "LONG_BINGET": lambda m, key: m.push(m.memo[key]),
    "SETITEM": lambda m, _: m.items([m.stack.pop(-2), m.stack.pop()]),
    "SETITEMS": lambda m, _: m.items(m.marked()),
    "APPEND": lambda m, _: m.appended([m.stack.pop()]),
    "APPENDS": lambda m, _: m.appended(m.marked()),
    "GLOBAL": lambda m, name: m.named(name.replace(" ", ".")),
    "STACK_GLOBAL": lambda m, _: m.named_by_stack(),
    "BINPERSID": lambda m, _: m.storage(),
    "REDUCE": lambda m, _: m.called(),
    "BUILD": lambda m, _: m.built(),
}
