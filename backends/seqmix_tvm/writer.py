"""Statements of a kernel under construction: nested loops, branches, and values bound to names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from seqmix_tvm import tvm_api as tvm

__all__ = ["Writer"]

_INDICES = ("int32", "int64")


class Writer:
    """Appends statements to the innermost of nested blocks.

    What is computed once for a key is remembered for as long as its block is open.
    """

    def __init__(self) -> None:
        """Nothing is written yet."""
        self._blocks: list[list[tvm.Stmt]] = [[]]
        self._known: list[dict[Any, tvm.Expr]] = [{}]
        self._kept: list[Any] = []
        self.vector = False
        """Whether the innermost open loop is vectorized: nothing may branch in it."""
        self.apart = False
        """Whether :meth:`bind` names floats as :meth:`hold` does."""
        self._lane: tuple[tvm.Var, int] = (tvm.integer(0), 1)
        self._outside: list[tvm.Stmt] = []

    def emit(self, statement: tvm.Stmt) -> None:
        """Append a statement."""
        self._blocks[-1].append(statement)

    def finish(self) -> tvm.Stmt:
        """All that was written."""
        (statements,) = self._blocks
        return tvm.block(statements)

    def bind(self, value: tvm.Expr, name: str = "v") -> tvm.Expr:
        """A name for a value, so that it is computed once.

        Integers are hidden, see :meth:`hide`, and so are vectors: on a choice by a vector of bools
        that has a name, TVM's analysis fails.
        """
        dtype = tvm.dtype_of(value)
        if self.vector or dtype in _INDICES or (self.apart and dtype.startswith("float")):
            value = self._by_memory(value)
        made = tvm.var(name, dtype)
        self.emit(tvm.bind(made, value))
        return made

    def hold(self, value: tvm.Expr) -> tvm.Expr:
        """A name for a value that is used several times in a function; floats are hidden."""
        return self.hide(value) if tvm.dtype_of(value).startswith("float") else self.bind(value)

    def hide(self, value: tvm.Expr) -> tvm.Expr:
        """A name for a value, by way of memory.

        TVM puts the value in the place of its name again wherever it has no side effect, so that a
        chain of names grows as a power of its length, in its passes and in front of LLVM. What is
        read from memory it leaves alone, and LLVM keeps a small buffer in a register.
        """
        made = tvm.var("v", tvm.dtype_of(value))
        self.emit(tvm.bind(made, self._by_memory(value)))
        return made

    def _by_memory(self, value: tvm.Expr) -> tvm.Expr:
        """The value, stored and read; in a vectorized loop the buffer has an element per lane."""
        lane, lanes = self._lane if self.vector else (tvm.integer(0), 1)
        made = tvm.buffer("held", tvm.dtype_of(value), [tvm.integer(lanes)], "local")
        (self._outside if self.vector else self._blocks[-1]).append(tvm.allocate(made))
        self.store(made, lane, value)
        return made[lane]

    def once(self, key: Any, make: Callable[[], tvm.Expr]) -> tvm.Expr:
        """What ``make`` gave for this key in a block that is open, else what it gives now.

        Keys may hold ``id`` of objects that :meth:`keep` was told of.
        """
        for known in reversed(self._known):
            if key in known:
                return known[key]
        made = make()
        self._known[-1][key] = made
        return made

    def keep(self, thing: Any) -> int:
        """The id of an object, which will not be reused."""
        self._kept.append(thing)
        return id(thing)

    def store(self, target: tvm.Buffer, index: tvm.Expr, value: tvm.Expr) -> None:
        """Write one element of a buffer of one dimension."""
        self.emit(tvm.store(target, index, value))

    def local(self, dtype: str, length: int) -> tvm.Buffer:
        """A small buffer of this block."""
        made = tvm.buffer("local", dtype, [tvm.integer(length)], "local")
        self.emit(tvm.allocate(made))
        return made

    def filled(self, dtype: str, length: int, value: tvm.Expr, lanes: int) -> tvm.Buffer:
        """A small buffer of one value; it is written in vectors of the length that it is read in.

        LLVM keeps a buffer in registers only where all that touches it touches the same parts.
        """
        made = self.local(dtype, length)
        kind = "vectorized" if lanes > 1 else "serial"
        for start in range(0, length, lanes):
            with self.loop(min(lanes, length - start), kind, "l") as lane:
                self.store(made, tvm.integer(start) + lane, value)
        return made

    @contextmanager
    def loop(self, extent: tvm.Expr | int, kind: str = "serial", name: str = "i") -> Iterator[Any]:
        """A loop from 0 around what is written inside; gives its counter."""
        counter = tvm.var(name)
        before, self.vector = self.vector, kind == "vectorized"
        if self.vector:
            # Vectors have no vectors inside, and what they hold is allocated around them.
            self._lane, self._outside = (counter, int(extent)), []
        with self.block() as body:
            yield counter
        if self.vector:
            self._blocks[-1] += self._outside
        self.vector = before
        limit = tvm.integer(extent) if isinstance(extent, int) else extent
        self.emit(tvm.loop(counter, limit, tvm.block(body), kind))

    @contextmanager
    def block(self) -> Iterator[list[tvm.Stmt]]:
        """A list that collects what is written inside, instead of the block around it."""
        body: list[tvm.Stmt] = []
        self._blocks.append(body)
        self._known.append({})
        yield body
        self._blocks.pop()
        self._known.pop()

    def choose(
        self, condition: tvm.Expr, yes: Callable[[], None], no: Callable[[], None] | None = None
    ) -> None:
        """What ``yes`` writes where a condition holds, else what ``no`` writes."""
        with self.block() as first:
            yes()
        if no is None:
            self.emit(tvm.branch(condition, tvm.block(first)))
            return
        with self.block() as second:
            no()
        self.emit(tvm.branch(condition, tvm.block(first), tvm.block(second)))

    def nest(
        self,
        extents: Sequence[tvm.Expr | int],
        body: Callable[[tuple[Any, ...]], None],
        kind: str = "serial",
    ) -> None:
        """Nested serial loops; the innermost is of the given kind."""
        self._nest(tuple(extents), (), body, kind)

    def _nest(
        self,
        extents: tuple[tvm.Expr | int, ...],
        counters: tuple[Any, ...],
        body: Callable[[tuple[Any, ...]], None],
        kind: str,
    ) -> None:
        if not extents:
            body(counters)
            return
        with self.loop(extents[0], kind if len(extents) == 1 else "serial") as counter:
            self._nest(extents[1:], (*counters, counter), body, kind)
