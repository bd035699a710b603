"""Every name of TVM that the backend uses; the package moves, and a new version changes this file.

Written for apache-tvm 0.27 (``>=0.27,<0.28``). TIR is ``tvm.tirx`` there, Relax has no struct info
but types, and a buffer is a variable of its own. Expressions of TVM have Python's operators, but
``==`` and ``!=``, for which there are functions here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from torch import Tensor
from torch.utils.dlpack import from_dlpack
from tvm import relax, tirx
from tvm.relax import vm_build
from tvm.tirx import op as intrinsics
from tvm.tirx.expr import FloatImm, IntImm

from seqmix.errors import BackendError
from seqmix_ir.types import DType

__all__ = [
    "NAMES",
    "Buffer",
    "Expr",
    "Machine",
    "RelaxBuilder",
    "Stmt",
    "Var",
    "absolute",
    "alias",
    "allocate",
    "array",
    "barrier",
    "bind",
    "block",
    "both",
    "branch",
    "buffer",
    "build",
    "build_cuda",
    "bytes_of",
    "call",
    "cast",
    "cpu_features",
    "device_module",
    "dtype_of",
    "either",
    "equal",
    "extern",
    "floating",
    "free_names",
    "gpu",
    "host_cpu",
    "integer",
    "launch",
    "loop",
    "maximum",
    "minimum",
    "negated",
    "on_device",
    "prefetch",
    "prim_func",
    "reinterpret",
    "runtime_library",
    "select",
    "shared_memory",
    "shuffled",
    "store",
    "tensor",
    "to_torch",
    "var",
    "version",
]

Expr: TypeAlias = Any
Stmt: TypeAlias = Any
Var: TypeAlias = Any
Buffer: TypeAlias = Any

NAMES: dict[DType, str] = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
    "i8": "int8",
    "u8": "uint8",
    "bool": "bool",
}
"""TVM's names of the element types."""

# A thread that is bound to a core waits for it, also while another core has nothing to do.
os.environ.setdefault("TVM_BIND_THREADS", "0")
# Its idle threads would spin for a while after each call, and take a core from whoever runs next.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")

_SAID = 300
"""Characters of what a linker says that are passed on."""

_ALIGNMENT = 64

_CREATE = "ffi.Module.create.cuda"
"""TVM's function that makes a module of device code; there where its CUDA runtime is."""

_STACK = 1 << 16
"""The largest buffer on the stack, in bytes."""

_KINDS = {
    "serial": tirx.ForKind.SERIAL,
    "parallel": tirx.ForKind.PARALLEL,
    "vectorized": tirx.ForKind.VECTORIZED,
    "unrolled": tirx.ForKind.UNROLLED,
}


def version() -> str:
    """The version of TVM that is installed."""
    return str(tvm.__version__)


def integer(value: int, dtype: str = "int64") -> Expr:
    """An integer; of dtype ``bool`` too."""
    return IntImm(dtype, int(value))


def floating(value: float, dtype: str = "float32") -> Expr:
    """A float, infinities and NaN included."""
    if value != value:
        raise BackendError("NaN is written as a pattern of bits; use reinterpret")
    return FloatImm(dtype, float(value))


def var(name: str, dtype: str = "int64") -> Var:
    """A fresh variable."""
    return tirx.Var(name, dtype)


def cast(dtype: str, value: Expr) -> Expr:
    """A number in another type; the value itself where it has it."""
    return value if dtype_of(value) == dtype else tirx.Cast(dtype, value)


def dtype_of(value: Expr) -> str:
    """TVM's name of the type of an expression."""
    return str(value.ty)


def bytes_of(dtype: str) -> int:
    """The bytes of an element."""
    return int(tvm.DataType(dtype).bits) // 8


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """One of two values, both of which are computed."""
    return tirx.Select(condition, yes, no)


def equal(x: Expr, y: Expr) -> Expr:
    """``x == y``."""
    return tirx.EQ(x, y)


def both(x: Expr, y: Expr) -> Expr:
    """The conjunction of two bools, both of which are computed."""
    return tirx.And(x, y)


def either(x: Expr, y: Expr) -> Expr:
    """The disjunction of two bools, both of which are computed."""
    return tirx.Or(x, y)


def negated(x: Expr) -> Expr:
    """Logical negation."""
    return tirx.Not(x)


def maximum(x: Expr, y: Expr) -> Expr:
    """The larger of two numbers; what NaN gives is not said."""
    return tirx.Max(x, y)


def minimum(x: Expr, y: Expr) -> Expr:
    """The smaller of two numbers; what NaN gives is not said."""
    return tirx.Min(x, y)


def absolute(x: Expr) -> Expr:
    """The absolute value."""
    return tirx.abs(x)


def reinterpret(dtype: str, value: Expr) -> Expr:
    """The same bits as another type of the same width."""
    return tirx.reinterpret(dtype, value)


def call(name: str, *values: Expr) -> Expr:
    """An intrinsic of TIR by name, such as ``floor`` or ``sqrt``."""
    return getattr(tirx, name)(*values)


def extern(dtype: str, name: str, *values: Expr) -> Expr:
    """A pure function of C's library."""
    return tirx.call_pure_extern(dtype, name, *values)


def buffer(name: str, dtype: str, shape: Sequence[Expr], scope: str = "global") -> Buffer:
    """A buffer to be a parameter or to be allocated."""
    return tirx.decl_buffer(tuple(shape), dtype, name, scope=scope)


def alias(name: str, dtype: str, length: Expr, of: Buffer) -> tuple[Buffer, Stmt]:
    """A one-dimensional view of a buffer's memory, and the statement that declares it."""
    view = tirx.decl_buffer((length,), dtype, name, data=of.data)
    return view, tirx.DeclBuffer(view, data=of.data)


def allocate(made: Buffer) -> Stmt:
    """The statement that gives memory to a buffer for the rest of its block.

    A small one is on the stack: TVM would ask its pool for it each time, and LLVM keep it out of
    registers.
    """
    size = math.prod(int(extent) for extent in made.shape)
    if size * tvm.DataType(str(made.dtype)).bits // 8 > _STACK:
        return tirx.AllocBuffer(made)
    return tirx.AllocBuffer(made, {"disable_lower_builtin": integer(1, "bool")})


def shared_memory(made: Buffer) -> Stmt:
    """The statement that gives memory of a thread block to a buffer of scope ``shared``."""
    return tirx.AllocBuffer(made)


def launch(names: Sequence[Var], extents: Sequence[Any], body: Stmt) -> Stmt:
    """A grid of thread blocks: the block, the warp in it and the lane in that have the names."""
    tags = ("blockIdx.x", "threadIdx.y", "threadIdx.x")
    for name, extent, tag in reversed(list(zip(names, extents, tags, strict=True))):
        size = cast("int32", extent) if not isinstance(extent, int) else integer(extent, "int32")
        limits = tvm.ir.Range(integer(0, "int32"), size)
        bound = tirx.IterVar(limits, name, tirx.IterVar.ThreadIndex, tag)
        body = tirx.AttrStmt(bound, "thread_extent", size, body)
    return body


def barrier() -> Stmt:
    """The statement with which the threads of a block wait for each other."""
    return tirx.Evaluate(intrinsics.tvm_storage_sync("shared"))


def shuffled(value: Expr, mask: int) -> Expr:
    """What the lane of a warp whose number differs in the bits of ``mask`` gave here."""
    everyone, width = integer(0xFFFFFFFF, "uint32"), integer(32, "int32")
    lane = integer(mask, "int32")
    return intrinsics.tvm_warp_shuffle_xor(everyone, value, lane, width, width)


def bind(name: Var, value: Expr) -> Stmt:
    """The statement that gives a variable its value for the rest of its block."""
    return tirx.Bind(name, value)


def store(target: Buffer, index: Expr, value: Expr) -> Stmt:
    """``target[index] = value`` for a buffer of one dimension."""
    return tirx.BufferStore(target, value, [index])


def prefetch(source: Buffer, index: Expr) -> Stmt:
    """The statement that asks for an element of a buffer of one dimension; past its end too."""
    address = tirx.address_of(source[index])
    read, near, data = (integer(n, "int32") for n in (0, 3, 1))
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, read, near, data))


def block(statements: Sequence[Stmt]) -> Stmt:
    """Statements in order."""
    if len(statements) == 1:
        return statements[0]
    return tirx.SeqStmt(list(statements)) if statements else tirx.Evaluate(integer(0, "int32"))


def loop(counter: Var, extent: Expr, body: Stmt, kind: str = "serial") -> Stmt:
    """A loop from 0; ``kind`` is serial, parallel, vectorized or unrolled."""
    return tirx.For(counter, integer(0), extent, _KINDS[kind], body)


def branch(condition: Expr, yes: Stmt, no: Stmt | None = None) -> Stmt:
    """One of two statements."""
    return tirx.IfThenElse(condition, yes, no)


def free_names(body: Stmt) -> set[str]:
    """The names of variables that a statement reads and does not define."""
    return {str(v.name) for v in tirx.analysis.undefined_vars(body, [])}


def prim_func(params: Sequence[Var], body: Stmt, name: str) -> Any:
    """A kernel, none of whose buffers overlap."""
    function = tirx.PrimFunc(list(params), body)
    return function.with_attrs({"tirx.noalias": True, "global_symbol": name})


class RelaxBuilder:
    """Writes one Relax function of tensors, which calls kernels in order."""

    def __init__(self, dims: Sequence[str]) -> None:
        """``dims`` are the names of the symbolic sizes, each of which some parameter shows."""
        self.dims = {name: tirx.Var(name, "int64") for name in dims}
        self._builder = relax.BlockBuilder()

    def tensor_type(self, dtype: DType, shape: Sequence[Expr]) -> Any:
        """The type of a tensor."""
        return relax.TensorType(tuple(shape), NAMES[dtype])

    def parameter(self, name: str, type: Any) -> Any:
        """A tensor that the function is given."""
        return relax.Var(name, type)

    def pack(self, name: str, types: Sequence[Any]) -> Any:
        """A tuple of tensors that the function is given as one parameter."""
        return relax.Var(name, relax.TupleType(list(types)))

    def function(self, name: str, params: Sequence[Any]) -> Any:
        """The context in which the function's body is written."""
        return self._builder.function(name, list(params))

    def kernel(self, function: Any, name: str) -> Any:
        """Add a kernel; it is called by what this returns."""
        return self._builder.add_func(function, name)

    def item(self, pack: Any, place: int) -> Any:
        """One tensor of a tuple."""
        return self._builder.emit(relax.TupleGetItem(pack, place))

    def call(self, kernel: Any, arguments: Sequence[Any], types: Sequence[Any]) -> list[Any]:
        """Call a kernel; its results."""
        made = self._builder.emit(relax.call_tir(kernel, list(arguments), list(types)))
        if len(types) == 1:
            return [made]
        return [self.item(made, place) for place in range(len(types))]

    def finish(self, results: Sequence[Any]) -> None:
        """Say what the function returns."""
        self._builder.emit_func_output(relax.Tuple(list(results)))

    def module(self) -> Any:
        """The finished module."""
        return self._builder.get()


def build(module: Any, mcpu: str, path: Path, built: Callable[[int, int], None]) -> None:
    """Compile a module for the CPU ``mcpu`` into a shared library at ``path``.

    ``built(done, total)`` is called before each kernel: they are compiled one by one for its sake,
    which is what ``relax.build`` does too, but with all of them at once.
    """
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu})
    with _checks_left_out():
        builder, kernels = _bytecode(module, target)
        libraries = []
        for place, (name, kernel) in enumerate(kernels):
            built(place, len(kernels))
            alone = tvm.IRModule({name: kernel})
            libraries.append(tvm.tirx.build(alone, target=target, pipeline="tirx"))
        made = vm_build._vmlink(builder, target, ext_libs=libraries)
    _export(made, path)


def build_cuda(
    module: Any, kernels: Collection[str], arch: str, mcpu: str, path: Path
) -> tuple[str, str]:
    """Compile a module for GPUs of an architecture such as ``sm_90``; no GPU is needed.

    What runs on the host becomes a shared library at ``path``. ``kernels`` are the functions that
    launch threads. Gives their source in CUDA C, and their parameters as text for
    :meth:`Machine`.
    """
    host = tvm.target.Target({"kind": "llvm", "mcpu": mcpu})
    device = tvm.target.Target({"kind": "cuda", "arch": arch}, host=host)
    with _checks_left_out():
        builder, functions = _bytecode(module, device)
        threads = {name: f for name, f in functions if name in kernels}
        rest = {name: f.without_attr("target") for name, f in functions if name not in kernels}
        libraries = [tvm.tirx.build(tvm.IRModule(rest), target=host, pipeline="tirx")]
        with _collected() as found:
            made = tvm.tirx.build(tvm.IRModule(threads), target=device, pipeline="tirx")
        made.clear_imports()
        executable = vm_build._vmlink(builder, host, ext_libs=[made, *libraries])
    _export(executable, path)
    if not found:
        return "", tvm.ir.save_json(tvm_ffi.Map({}))
    ((source, functions_of_device),) = found
    return source, tvm.ir.save_json(functions_of_device)


def _export(made: Any, path: Path) -> None:
    """Link a shared library; BackendError where it cannot be written, or the linker fails."""
    try:
        made.export_library(str(path))
    except Exception as error:  # The linker's own words, in an error of Python's or of TVM's.
        said = " ".join(str(error).split())[:_SAID]
        raise BackendError(
            f"{path}: cannot be written: {said}; make room there (TMPDIR chooses another place), "
            "and look whether a C++ compiler works"
        ) from error


@contextmanager
def _collected() -> Iterator[list[tuple[str, Any]]]:
    """Source and functions of each device module that is built inside, instead of the module."""
    found: list[tuple[str, Any]] = []
    usual = tvm_ffi.get_global_func(_CREATE, allow_missing=True)

    def take(source: Any, kind: str, functions: Any, *more: Any) -> Any:
        text = source if isinstance(source, str) else bytes(source).decode()
        found.append((text, functions))
        return tvm.tirx.build(tvm.IRModule({}), target="llvm", pipeline="tirx")

    tvm_ffi.register_global_func(_CREATE, take, override=True)
    try:
        yield found
    finally:
        if usual is None:
            tvm_ffi.registry.remove_global_func(_CREATE)
        else:
            tvm_ffi.register_global_func(_CREATE, usual, override=True)


def _checks_left_out() -> Any:
    """Kernels check no arguments: the function around them is checked, and calls them."""
    return tvm.transform.PassContext(config={"tirx.disable_assert": True})


def _bytecode(module: Any, target: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """The bytecode of a module under construction, and the kernels that it calls."""
    passes = relax.transform
    steps = tvm.transform.Sequential(
        [
            passes.ToNonDataflow(),
            passes.RemovePurityChecking(),
            passes.CallTIRRewrite(),
            passes.StaticPlanBlockMemory(),
            passes.LowerAllocTensor(),
            passes.LowerRuntimeBuiltin(),
            passes.ComputePrimValue(),
            passes.VMShapeLower(),
            passes.AttachGlobalSymbol(),
        ]
    )
    with target:
        module = steps(module)
    builder = relax.ExecBuilder()
    module = vm_build._vmcodegen(builder, module, "bytecode")
    found = (vm_build._filter_tir(module) or tvm.IRModule()).functions.items()
    return builder, [(variable.name_hint, function) for variable, function in found]


def device_module(binary: bytes, parameters: str) -> Any:
    """A module of machine code for a GPU, with the parameters that :func:`build_cuda` told.

    BackendError where TVM's runtime for CUDA cannot be loaded.
    """
    create = tvm_ffi.get_global_func(_CREATE, allow_missing=True)
    if create is None:
        raise BackendError("TVM's runtime for CUDA is not loaded: this machine lacks libcuda.so.1")
    return create(binary, "cubin", tvm.ir.load_json(parameters), tvm_ffi.Map({}))


def gpu() -> tuple[Any, str] | None:
    """The first CUDA device and its compute capability, such as ``9.0``; None without one."""
    device = tvm.cuda(0)
    try:
        return (device, str(device.compute_version)) if device.exist else None
    except Exception:  # A runtime without CUDA says so in ways that differ.
        return None


def cpu_features(mcpu: str) -> set[str]:
    """LLVM's names of what a processor can do."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu})
    found = tvm_ffi.get_global_func("target.llvm_get_cpu_features")(target)
    return {str(name) for name in found}


def runtime_library() -> Path:
    """TVM's runtime, without its compiler."""
    return Path(tvm.libinfo.find_libtvm_runtime())


def host_cpu() -> str:
    """LLVM's name of this machine's processor."""
    return str(tvm_ffi.get_global_func("tvm.codegen.llvm.GetHostCPUName")())


class Machine:
    """A loaded library, and the weights that it reads.

    It has one stack and one set of registers for all who call it: threads take turns.
    """

    def __init__(
        self, path: Path, weights: Sequence[Any], threads: Any = None, device: Any = None
    ) -> None:
        """Load the library; BackendError where TVM refuses it.

        ``threads`` is the module of device code, where there is some: see :func:`device_module`.
        """
        try:
            library = tvm.runtime.load_module(str(path))
            for part in (library, *library.imports) if threads is not None else ():
                part.import_module(threads)
            # TVM's pool keeps memory by size, for ever; states have other sizes at every step.
            self._machine = relax.VirtualMachine(library, device or tvm.cpu(), memory_cfg="naive")
        except Exception as error:  # TVM has many classes of errors and no common base.
            raise BackendError(f"{path}: TVM refuses the library: {error}") from error
        self._weights = tvm_ffi.Array(list(weights))
        self._functions: dict[str, Any] = {}
        self._turn = Lock()

    def run(self, name: str, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Call a function on tensors that lie on its device; its results, without copies."""
        given = [tensor(x) for x in inputs]
        with self._turn:
            if name not in self._functions:
                self._functions[name] = self._machine[name]
            results = list(self._functions[name](*given, self._weights))
        return [to_torch(x) for x in results]


def tensor(x: Tensor) -> Any:
    """A torch tensor on the CPU as one of TVM; it is copied where vectors would not be aligned."""
    x = _compact(x.contiguous())
    return tvm.runtime.from_dlpack(x.clone() if x.data_ptr() % _ALIGNMENT else x)


def _compact(x: Tensor) -> Tensor:
    """The same tensor; strides along axes of size 0 and 1, which are free, are those of a row."""
    wanted = _row_strides(x.shape)
    return x if x.stride() == wanted else x.as_strided(x.shape, wanted)


@lru_cache(1024)
def _row_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def to_torch(x: Any) -> Tensor:
    """A tensor of TVM as one of torch, without a copy."""
    made: Tensor = from_dlpack(x)
    return made


def array(value: Any) -> Any:
    """A numpy array as a tensor of TVM."""
    return tvm.runtime.tensor(value)


def on_device(value: Any, device: Any) -> Any:
    """A tensor of TVM, copied to a device."""
    return value.copyto(device)
