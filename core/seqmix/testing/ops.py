"""check_op: the definition of an op against everything that claims to compute the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias, cast

import numpy as np

from seqmix import registry
from seqmix.backend import Backend
from seqmix.choose import BackendLegality
from seqmix.compile import compile
from seqmix.errors import BackendError, ConfigError, PluginError, did_you_mean
from seqmix.testing.bindings import check_binding, find_binding
from seqmix.testing.cases import GRAPH, Case, make_case
from seqmix.testing.report import CheckReport, Row
from seqmix.weights import to_torch
from seqmix_ir.defn import Example, OpDef
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Module, Op
from seqmix_ir.ops import CORE_OPS
from seqmix_ir.passes import explain, legalize
from seqmix_ir.table import OpTable
from seqmix_ir.text import parse, show
from seqmix_ir.types import DType
from seqmix_ir.verifier import verify

__all__ = ["OP_PROFILES", "check_op"]

Rows: TypeAlias = "Iterator[Row]"

OP_PROFILES: dict[str, tuple[tuple[DType, ...], tuple[DType, ...]]] = {
    "quick": (("f32", "bf16"), ("f32",)),
    "full": (("f32", "bf16", "f16", "f64"), ("f32", "f64", "f16", "bf16")),
}
"""Dtypes in which an op runs by its definition and in torch, and those of the backends."""

_HOW_TO = (
    "the op has no examples: give its class the classmethod examples(cls, rng), which returns a "
    "few seqmix_ir.defn.Example(defn, operands) with float64 operands"
)


def check_op(
    op: str | type[OpDef],
    profile: str = "quick",
    backends: Sequence[str] | None = None,
) -> CheckReport:
    """Check an op of the IR, by name or as a class, on each of its ``examples``.

    Types, text form, verifier, every decomposition down to primitive ops, narrow dtypes, every
    backend, and, where the op is bound to torch, its kernel, fake kernel, gradients and capture:
    all against ``evaluate`` in float64. ``backends`` defaults to those that are available.
    Raises ConfigError for an unknown profile, IRError or PluginError for an unknown op, and
    BackendError for a wanted backend that is missing; what the op does wrong is in the report.
    """
    if profile not in OP_PROFILES:
        raise ConfigError(
            f"profile {profile!r} is unknown{did_you_mean(profile, OP_PROFILES)}; "
            f"known: {', '.join(OP_PROFILES)}"
        )
    table = registry.op_table()
    cls = table.lookup(op) if isinstance(op, str) else table.register(op)
    report = CheckReport(f"op '{cls.name}'")
    check = _Check(cls, table, profile, _available(backends, report.notes), report.notes)
    report.rows += check.rows()
    report.notes = list(dict.fromkeys(report.notes))
    return report


class _Check:
    """All checks of one op."""

    def __init__(
        self,
        cls: type[OpDef],
        table: OpTable,
        profile: str,
        backends: Sequence[Backend],
        notes: list[str],
    ) -> None:
        self.cls = cls
        self.table = table
        self.backends = backends
        self.notes = notes
        self.dtypes, self.backend_dtypes = OP_PROFILES[profile]
        self.binding = find_binding(cls)
        if self.binding is None and cls not in CORE_OPS:
            notes.append(f"op '{cls.name}' is not bound to torch")

    def rows(self) -> Rows:
        """The rows of every example; the detail says which."""
        try:
            examples = list(self.cls.examples(np.random.default_rng(7)))
        except Exception as error:  # Whatever an op of a plugin raises is what is wrong with it.
            yield _failed("examples", "", error)
            return
        if not examples:
            yield Row("examples", "", 1.0, 0.0, _HOW_TO)
        for index, example in enumerate(examples):
            label = _label(index, example)
            for row in _guarded("example", "", partial(self._example, example)):
                yield replace(row, detail=f"{label} {row.detail}".strip())

    def _example(self, example: Example) -> Rows:
        try:
            case = make_case(example, "f32")
        except Exception as error:  # As above: it is reported, not raised.
            yield _failed("types", "f32", error)
            return
        yield from _guarded("types", "f32", partial(_types, case))
        yield from _guarded("text round trip", "f32", partial(self._text, case))
        for style in example.defn.decompositions():
            yield from _guarded(_check_of(style), "judge", partial(_judged, case, style))
        for dtype in self.dtypes:
            yield from self._narrow(example, dtype)
        for dtype in self.backend_dtypes:
            for backend in self.backends:
                yield from self._backend(example, dtype, backend)
        if self.binding is not None:
            yield from check_binding(example, self.binding, self.dtypes)

    def _text(self, case: Case) -> Rows:
        text = show(case.module)
        again = show(parse(text, self.table))
        yield Row("text round trip", "f32", float(again != text), 0.0)

    def _narrow(self, example: Example, dtype: DType) -> Rows:
        """The definition and the decompositions in a dtype of the machine."""
        try:
            case = make_case(example, dtype)
        except IRError as error:
            self.notes.append(f"op '{self.cls.name}' was not checked in {dtype}: {error}")
            return
        for style in ("", *example.defn.decompositions()):
            yield from _guarded(_check_of(style), dtype, partial(_interpreted, case, style))

    def _backend(self, example: Example, dtype: DType, backend: Backend) -> Rows:
        try:
            case = make_case(example, dtype)
        except IRError:
            # That the op refuses a dtype is said already.
            return
        yield from _guarded("runs", f"{backend.name} {dtype}", partial(self._run, case, backend))

    def _run(self, case: Case, backend: Backend) -> Rows:
        """The op on a backend, legalized for it; one that knows no narrow dtype is a note."""
        legality = BackendLegality(backend, backend.default_target())
        impossible = explain(case.module, legality).impossible
        if impossible and case.dtype != "f32":
            why = f"'{impossible[0].op}': {impossible[0].reason}"
            self.notes.append(f"backend '{backend.name}' was not checked in {case.dtype}: {why}")
            return
        executable = compile(case.program(), backend, cache=False)
        inputs = {name: to_torch(array) for name, array in case.inputs.items()}
        found = executable.run(GRAPH, inputs)
        yield case.row("runs", f"{backend.name} {case.dtype}", found)


class _Primitives:
    """What a machine can run that knows primitive ops only."""

    name = "primitives"

    def supports(self, op: Op) -> str | None:
        """Why an op is none."""
        return "it is not primitive" if op.defn.decompositions() else None

    def prefer(self, op: Op) -> tuple[str, ...]:
        """The op's own order."""
        return ()


def _types(case: Case) -> Rows:
    """The module is sound, and ``evaluate`` gives what ``infer`` says."""
    verify(case.module)
    # The interpreter refuses results that are not of their type.
    found = case.interpret(case.module)
    missing = set(case.module.graph(GRAPH).results) - set(found)
    yield Row("types", "f32", float(len(missing)), 0.0)


def _judged(case: Case, style: str) -> Rows:
    """A decomposition, and what is left when all that it uses is decomposed too."""
    written, check = case.decomposed(style), _check_of(style)
    verify(written)
    wanted, found = _result_types(case.module), _result_types(written)
    if wanted != found:
        raise IRError(f"it gives {', '.join(found)}, expected {', '.join(wanted)}")
    yield case.row(check, "judge", case.interpret(written, judge=True), judge=True)
    primitive, _ = legalize(written, _Primitives())
    verify(primitive)
    results = case.interpret(primitive, judge=True)
    yield case.row(f"{check}, to primitives", "judge", results, judge=True)


def _interpreted(case: Case, style: str) -> Rows:
    """The definition, or a decomposition, in the dtype of the case."""
    module = case.decomposed(style) if style else case.module
    yield case.row(_check_of(style), case.dtype, case.interpret(module))


def _check_of(style: str) -> str:
    return f"decomposition '{style}'" if style else "definition"


def _available(wanted: Sequence[str] | None, notes: list[str]) -> list[Backend]:
    """The backends to check; "torch" runs models only, and "reference" is the definition."""
    names = registry.names("backends") if wanted is None else wanted
    found = []
    for name in names:
        if name in ("torch", "reference"):
            continue
        try:
            backend = cast(type[Backend], registry.get("backends", name))()
            if not (available := backend.probe()):
                raise BackendError(f"backend '{name}' is not available here: {available.reason}")
        except (BackendError, PluginError) as error:
            if wanted is not None:
                raise
            notes.append(f"backend '{name}' was not checked: {error}")
        else:
            found.append(backend)
    return found


def _guarded(check: str, where: str, rows: Callable[[], Rows]) -> Rows:
    """The rows, or the failure that cut them short."""
    try:
        yield from rows()
    except Exception as error:  # Ops come from plugins: what they raise is a finding.
        yield _failed(check, where, error)


def _failed(check: str, where: str, error: Exception) -> Row:
    kind = "" if isinstance(error, IRError) else f"{type(error).__name__}: "
    return Row(check, where, 1.0, 0.0, f"{kind}{error}")


def _label(index: int, example: Example) -> str:
    attributes = ", ".join(f"{k}={v!r}" for k, v in example.defn.attributes().items())
    return f"example {index}{f' ({attributes})' if attributes else ''}:"


def _result_types(module: Module) -> list[str]:
    return [str(value.type) for value in module.graph(GRAPH).block.results]
