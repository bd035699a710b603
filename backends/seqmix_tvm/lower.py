"""From a graph of the IR to a Relax function that calls one kernel per group of ops."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmix.progress import counted
from seqmix.weights import Weights
from seqmix_ir.dims import Dim, Size, show_size, symbols_of
from seqmix_ir.graph import Block, Graph, Op, Value
from seqmix_ir.interpret import NUMPY_DTYPES
from seqmix_ir.types import FLOATS, TensorType
from seqmix_tvm import tvm_api as tvm
from seqmix_tvm.cuda.kernel import GridKernel
from seqmix_tvm.cuda.table import SCRATCH as GPU_SCRATCH
from seqmix_tvm.cuda.writer import CudaWriter
from seqmix_tvm.frame import Frame
from seqmix_tvm.functions import naming
from seqmix_tvm.kernel import Kernel
from seqmix_tvm.kernels import SCRATCH
from seqmix_tvm.kernels.product import PANEL, packed_index
from seqmix_tvm.place import Place, Sizes, known
from seqmix_tvm.plan import Group, hoisted, is_leaf, plan_block, with_copies
from seqmix_tvm.quantise import stored_weight
from seqmix_tvm.rules import RULES
from seqmix_tvm.writer import Writer

__all__ = ["Lowered", "Stored", "lower_graph"]


@dataclass(frozen=True)
class Stored:
    """A tensor that the library is given beside its inputs: a weight, or a constant array.

    ``packed`` says that it lies in panels, see :mod:`seqmix_tvm.kernels.product`.
    """

    name: str
    type: TensorType
    packed: bool = False

    @property
    def shape(self) -> tuple[Size, ...]:
        """The shape in which it lies in memory."""
        if not self.packed:
            return self.type.shape
        N, K = (known(size) for size in self.type.shape)
        return (-(-N // PANEL), K, PANEL)

    def array(self, found: NDArray[Any]) -> NDArray[Any]:
        """The tensor as it lies in memory."""
        if not self.packed:
            return np.ascontiguousarray(found)
        panels, K, _ = (known(size) for size in self.shape)
        full = np.zeros((panels * PANEL, K), found.dtype)
        full[: found.shape[0]] = found
        return np.ascontiguousarray(full.reshape(panels, PANEL, K).transpose(0, 2, 1))


@dataclass
class Lowered:
    """A Relax module with the function ``main``, and what it is given beside the inputs."""

    module: Any
    stored: list[Stored]
    constants: dict[str, NDArray[Any]]
    kernels: Counter[str] = field(default_factory=Counter)

    def arrays(self, weights: Weights) -> dict[str, NDArray[Any]]:
        """All that the library is given, by name, as it lies in memory."""
        return {
            s.name: s.array(
                self.constants[s.name] if s.name in self.constants else weights.numpy(s.name)
            )
            for s in self.stored
        }


def lower_graph(graph: Graph, kind: str = "llvm") -> Lowered:
    """Write every kernel of a graph once, and the function that calls them in order.

    ``kind`` is TVM's: ``llvm`` or ``cuda``.
    """
    return _Lowering(graph, kind).run()


class _Lowering:
    def __init__(self, graph: Graph, kind: str) -> None:
        self.graph = graph
        self.gpu = kind == "cuda"
        self.block = with_copies(hoisted(graph.block))
        self.dims = _bound_dims(graph)
        self.relax = tvm.RelaxBuilder(self.dims)
        self.sizes = Sizes(self.relax.dims)
        self.least = {info.name: info.min for info in graph.dims}
        self.values: dict[Value, Any] = {}
        self.kernels: dict[str, Any] = {}
        self.names: Counter[str] = Counter()
        self.used: Counter[str] = Counter()
        self.constants: dict[str, NDArray[Any]] = {}
        self.stored: dict[Value, Stored] = {}

    def run(self) -> Lowered:
        # Panels are made for vectors; threads read rows.
        packed = set() if self.gpu else _packed_values(self.block)
        leaves = [op for op in self.block.ops if is_leaf(op)]
        for op in leaves:
            self.stored[op.results[0]] = self._stored(op, op.results[0] in packed)
        params = [
            self.relax.parameter(f"arg{i}", self._type(p)) for i, p in enumerate(self.block.params)
        ]
        self.values.update(zip(self.block.params, params, strict=True))
        pack = self.relax.pack("stored", [self._type(op.results[0]) for op in leaves])
        with self.relax.function("main", [*params, pack]):
            for place, op in enumerate(leaves):
                self.values[op.results[0]] = self.relax.item(pack, place)
            groups = plan_block(self.block)
            for place, group in enumerate(groups):
                counted("kernels written", place, len(groups))
                self._call(group)
            self.relax.finish([self.values[r] for r in self.block.results])
        stored = list(self.stored.values())
        return Lowered(self.relax.module(), stored, self.constants, self.used)

    def _stored(self, op: Op, packed: bool) -> Stored:
        type = op.results[0].type
        if op.name == "weight":
            return Stored(op.defn.attributes()["key"], type, packed)
        name = f"constant.{len(self.constants)}"
        self.constants[name] = np.array(
            op.defn.attributes()["value"], NUMPY_DTYPES[type.dtype]
        ).reshape([known(s) for s in type.shape])
        return Stored(name, type, packed)

    def _shape(self, value: Value) -> tuple[Size, ...]:
        return self.stored[value].shape if value in self.stored else value.type.shape

    def _type(self, value: Value) -> Any:
        return self.relax.tensor_type(value.type.dtype, [self.sizes(s) for s in self._shape(value)])

    def _call(self, group: Group) -> None:
        """Call the kernel of a group; equal groups share one."""
        key = self._key(group)
        if key not in self.kernels:
            name = self._name(group)
            made, dims = self._kernel(group, name)
            self.kernels[key] = (name, self.relax.kernel(made, name), dims)
        name, kernel, dims = self.kernels[key]
        self.used[name] += 1
        arguments = [self.values[v] for v in group.inputs]
        arguments += [self.relax.dims[d] for d in dims]
        scratch = self._scratch(group)
        types = [self._type(v) for v in group.results]
        types += [
            self.relax.tensor_type(t.dtype, [self.sizes(s) for s in t.shape]) for t in scratch
        ]
        made = self.relax.call(kernel, arguments, types)
        self.values.update(zip(group.results, made, strict=False))

    def _name(self, group: Group) -> str:
        told = [op.name for op in group.ops if op.name not in ("constant", "reshape", "unsqueeze")]
        stem = "_".join(told[-4:] or ["copy"]).replace(".", "_")
        self.names[stem] += 1
        return f"{stem}_{self.names[stem]}"

    def _kernel(self, group: Group, name: str) -> tuple[Any, list[str]]:
        """The kernel as a function of inputs, sizes, results and scratch memory; which sizes."""
        sizes = Sizes({d: tvm.var(d) for d in self.dims}, self.least)
        writer = CudaWriter() if self.gpu else Writer()
        ops = {r: op for op in group.ops for r in op.results}
        frame = Frame(writer, sizes, RULES, ops)
        params: list[Any] = []
        for i, value in enumerate((*group.inputs, *group.results)):
            packed = value in self.stored and self.stored[value].packed
            params.append(_parameter(frame, f"p{i}", value, self._shape(value), packed))
        scratch = [_buffer(frame, f"s{i}", t, t.shape) for i, t in enumerate(self._scratch(group))]
        inputs = len(group.inputs)
        made = GridKernel if self.gpu else Kernel
        kernel = made(writer, frame, group, scratch=[place for _, place in scratch])
        sizes.hold(_shapes(group.ops), writer.hide)
        with naming(writer.hold, library=self.gpu):
            kernel.write()
        body = writer.finish()
        shapes = [self._shape(v) for v in (*group.inputs, *group.results)]
        shapes += [t.shape for t in self._scratch(group)]
        dims = _hidden_dims(self.dims, shapes, tvm.free_names(body))
        ordered = [*params[:inputs], *(sizes.names[d] for d in dims), *params[inputs:]]
        return tvm.prim_func([*ordered, *(b for b, _ in scratch)], body, name), dims

    def _scratch(self, group: Group) -> list[TensorType]:
        """Tensors that a kernel needs for itself."""
        known = GPU_SCRATCH if self.gpu else SCRATCH
        if group.anchor is None or group.anchor.name not in known:
            return []
        return known[group.anchor.name](group.anchor)

    def _key(self, group: Group) -> str:
        """Text that is equal for groups with the same kernel."""
        numbers: dict[Value, int] = {}
        for value in group.inputs:
            numbers[value] = len(numbers)
        lines = [
            f"{v.type} {self.stored[v].packed if v in self.stored else ''}" for v in group.inputs
        ]
        lines += [_line(op, numbers) for op in group.ops]
        lines.append(" ".join(str(group.ops.index(op)) for op in group.chain))
        return "\n".join(lines)


def _shapes(ops: Iterable[Op]) -> Iterator[Sequence[Size]]:
    """The shapes of all that some ops read and make."""
    for op in ops:
        yield from (v.type.shape for v in (*op.operands, *op.results) if v is not None)
        if op.body is not None:
            yield from _shapes(op.body.ops)


def _line(op: Op, numbers: dict[Value, int]) -> str:
    """An op as text, with values by number."""
    read = " ".join("none" if v is None else str(numbers[v]) for v in op.operands)
    for value in op.results:
        numbers[value] = len(numbers)
    body = "" if op.body is None else _block_text(op.body)
    return f"{op.defn!r} {read} {', '.join(str(v.type) for v in op.results)} {body}"


def _block_text(block: Block) -> str:
    numbers: dict[Value, int] = {}
    for value in block.params:
        numbers[value] = len(numbers)
    lines = [str(v.type) for v in block.params]
    lines += [_line(op, numbers) for op in block.ops]
    return "{" + "\n".join(lines) + " ".join(str(numbers[v]) for v in block.results) + "}"


def _parameter(
    frame: Frame, name: str, value: Value, shape: Sequence[Size], packed: bool
) -> tvm.Buffer:
    made, place = _buffer(frame, name, value.type, shape)
    if packed:
        place = dataclasses.replace(place, where=packed_index)
    frame.places[value] = place
    return made


def _buffer(
    frame: Frame, name: str, type: TensorType, shape: Sequence[Size]
) -> tuple[tvm.Buffer, Place]:
    """A parameter of a kernel, and its memory as one row."""
    sizes = frame.sizes
    made = tvm.buffer(name, tvm.NAMES[type.dtype], [sizes(s) for s in shape])
    # bfloat16 is read as the bits that it is.
    dtype = "uint16" if type.dtype == "bf16" else tvm.NAMES[type.dtype]
    # TVM divides by the length of a row, even of one that nothing is read of.
    length = tvm.integer(1) if 0 in shape else sizes.product(shape)
    view, declared = tvm.alias(f"{name}_row", dtype, length, made)
    frame.writer.emit(declared)
    return made, Place(view, type.dtype)


def _bound_dims(graph: Graph) -> list[str]:
    """The names that are the size of some axis of an input."""
    found: dict[str, None] = {}
    for value in graph.inputs.values():
        for size in value.type.shape:
            if isinstance(size, Dim) and show_size(size).isidentifier():
                found[show_size(size)] = None
    return list(found)


def _hidden_dims(
    dims: Sequence[str], shapes: Sequence[Sequence[Size]], used: Iterable[str]
) -> list[str]:
    """The sizes that a kernel needs, and that are no axis of a tensor it is given.

    Each is a call of the virtual machine; what an axis shows costs nothing.
    """
    sizes = [size for shape in shapes for size in shape]
    shown = {show_size(size) for size in sizes}
    needed = {name for size in sizes for name in symbols_of(size)} | {*used}
    return [d for d in dims if d in needed and d not in shown]


def _packed_values(block: Block) -> set[Value]:
    """Leaves that some product reads as its weight, directly or as a constant of a scan."""
    leaves = {op.results[0] for op in block.ops if is_leaf(op)}
    found = set()
    made_by = {result: op for op in block.ops for result in op.results}
    for op in block.ops:
        stored, _ = stored_weight(op.operands[1] if op.name == "linear" else None, made_by.get)
        if stored in leaves:
            found.add(stored)
        if op.body is not None:
            inner = _linear_params(op.body)
            outside = zip(op.body.params[-len(op.operands) :], op.operands, strict=False)
            found |= {v for param, v in outside if param in inner and v in leaves}
    return {v for v in found if v is not None and v.type.dtype in FLOATS | {"i8"}}


def _linear_params(block: Block) -> set[Value]:
    return {
        op.operands[1] for op in block.ops if op.name == "linear" and op.operands[1] is not None
    }
