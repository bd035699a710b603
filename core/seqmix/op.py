"""Bind an op of the IR to torch, once: schema, fake kernel and autograd from one class."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from seqmix.errors import PluginError, did_you_mean
from seqmix.symbols import Symbols, type_of
from seqmix_ir.builder import infer_types
from seqmix_ir.defn import OpDef
from seqmix_ir.errors import IRError
from seqmix_ir.types import TensorType

__all__ = ["TorchOp", "bound_ops", "op", "replace"]

Eager: TypeAlias = "Callable[..., Tensor | tuple[Tensor, ...]]"
Backward: TypeAlias = "Callable[..., Sequence[Tensor | None]]"
Saved: TypeAlias = "Mapping[str, Callable[..., TensorType]]"

NO_SAVED: Saved = {}
# torch does not annotate this class.
_LIBRARY: Any = torch.library.Library("seqmix", "DEF")  # type: ignore[no-untyped-call]
_BOUND: dict[str, TorchOp] = {}
_REPLACED: dict[tuple[str, str], Callable[..., Any]] = {}
_PLAIN = (Tensor, torch.nn.Parameter, type(None))
_SCHEMA_TYPES: dict[Any, str] = {
    int: "int",
    float: "float",
    bool: "bool",
    str: "str",
    tuple[int, ...]: "int[]",
    tuple[float, ...]: "float[]",
}
# HIP devices answer to the key and the name of CUDA in torch.
_KEYS = {"cpu": "CPU", "cuda": "CUDA", "hip": "CUDA"}


@dataclasses.dataclass(frozen=True, eq=False)
class TorchOp:
    """An op of the IR that torch can call: operands by position, attributes by keyword.

    Saved tensors, which only the backward pass needs, are dropped from what a call returns.
    """

    defn: type[OpDef]
    name: str
    saves: int
    overload: Any
    eager: Eager
    backward: Backward | None = None
    kernels: dict[str, Eager] = dataclasses.field(default_factory=dict)

    def __call__(self, *operands: Any, **attributes: Any) -> Any:
        """One tensor, or a tuple when the op has several results."""
        call = self.overload
        if (
            not torch.is_grad_enabled()
            and _are_plain(operands)
            and not torch.compiler.is_compiling()
        ):
            # Nobody watches: the kernel itself saves the dispatcher's 30 us, which decoding pays
            # three times a layer.
            call = self.kernels.get(operands[0].device.type, self.eager)
        out = call(*operands, **attributes)
        results = len(self.defn.results)
        if results + self.saves == 1:
            return out
        return out[0] if results == 1 else tuple(out[:results])


def op(
    defn: type[OpDef],
    *,
    eager: Eager,
    backward: Backward | None = None,
    saved: Saved = NO_SAVED,
) -> TorchOp:
    """Register ``seqmix::<name>`` for an op class, with its fake kernel and autograd.

    ``eager(*operands, **attributes)`` returns the results and then the saved tensors; it must not
    return views of its operands. ``saved`` maps the name of each saved tensor to a function
    ``(defn, *operand_types)`` that gives its type. ``backward(grads, operands, outputs, needs,
    **attributes)`` returns one gradient, or None, per operand; ``outputs`` are results and saved
    tensors, ``needs`` says per operand whether its gradient is wanted. Raises
    :class:`PluginError` for a second registration.
    """
    name = defn.name.replace(".", "_")
    _refuse_second(name, defn)
    _check_signature(defn, backward)
    attributes = _attribute_schema(defn)
    _define(name, _operand_schema(defn), attributes, len(defn.results) + len(saved))
    _LIBRARY.impl(name, eager, "CompositeExplicitAutograd")
    torch.library.register_fake(f"seqmix::{name}", _fake(defn, saved), lib=_LIBRARY)
    bound = TorchOp(defn, name, len(saved), _overload(name), eager, backward)
    _BOUND[name] = bound
    if backward is not None:
        _register_backward(bound, backward, attributes)
    return bound


def replace(name: str, device: str, fn: Callable[..., Any]) -> None:
    """Use ``fn`` for ``name`` (or ``<name>_backward``) on ``"cpu"``, ``"cuda"`` or ``"hip"``.

    ``fn`` has the signature of the eager or backward function given to :func:`op`. Autograd stays
    as registered. Raises :class:`PluginError` for unknown names, and when another one was there.
    """
    torch_name = name.replace(".", "_")
    forward = torch_name.removesuffix("_backward")
    if torch_name not in _BOUND and not (forward in _BOUND and _has(torch_name)):
        raise PluginError(f"no torch op '{name}' to replace{did_you_mean(torch_name, _BOUND)}")
    if device not in _KEYS:
        raise PluginError(f"no device '{device}' to replace '{name}' on; known: {list(_KEYS)}")
    key = (torch_name, _KEYS[device])
    if key in _REPLACED:
        raise PluginError(
            f"'{name}' on {device} is already replaced by {_home(_REPLACED[key])}, "
            f"found {_home(fn)}; use one of the two packages"
        )
    _REPLACED[key] = fn
    if torch_name in _BOUND:
        _BOUND[torch_name].kernels["cpu" if device == "cpu" else "cuda"] = fn
    kernel = fn if torch_name in _BOUND else _flat_backward(_BOUND[forward], fn)
    _LIBRARY.impl(torch_name, kernel, key[1])


def bound_ops() -> Mapping[str, TorchOp]:
    """Every op bound so far, by torch name (``seqmix::<key>``)."""
    return dict(_BOUND)


def _are_plain(operands: tuple[Any, ...]) -> bool:
    """Whether all are ordinary tensors (no fake ones, no subclasses) or absent."""
    for operand in operands:
        if type(operand) not in _PLAIN:
            return False
    return operands[0] is not None


def _refuse_second(name: str, defn: type[OpDef]) -> None:
    if name not in _BOUND:
        return
    known = _BOUND[name].defn
    raise PluginError(
        f"torch op 'seqmix::{name}' is already bound to {_home(known)}, found {_home(defn)}; "
        "bind an op once, and replace its device kernels with seqmix.op.replace"
    )


def _check_signature(defn: type[OpDef], backward: Backward | None) -> None:
    if defn.region or any(r.startswith("*") for r in defn.results):
        raise PluginError(f"op '{defn.name}' has a region or variadic results; use seqmix.scan")
    if backward is not None and any(o.startswith("*") for o in defn.operands):
        raise PluginError(f"op '{defn.name}' has variadic operands, which have no backward here")


def _operand_schema(defn: type[OpDef]) -> str:
    return ", ".join(_operand(name) for name in defn.operands)


def _operand(name: str) -> str:
    if name.startswith("*"):
        return f"Tensor[] {name[1:]}"
    return f"Tensor? {name[:-1]}" if name.endswith("?") else f"Tensor {name}"


def _attribute_schema(defn: type[OpDef]) -> str:
    hints = typing.get_type_hints(defn)
    parts = []
    for field in dataclasses.fields(defn):  # type: ignore[arg-type]
        default = "" if field.default is dataclasses.MISSING else f"={_literal(field.default)}"
        parts.append(f"{_schema_type(defn, field.name, hints[field.name])} {field.name}{default}")
    return ", ".join(parts)


def _schema_type(defn: type[OpDef], field: str, hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        hint = type(typing.get_args(hint)[0])
    if hint in _SCHEMA_TYPES:
        return _SCHEMA_TYPES[hint]
    raise PluginError(
        f"attribute '{field}: {hint}' of op '{defn.name}' has no torch schema; "
        "use int, float, bool, str, tuple[int, ...] or tuple[float, ...]"
    )


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _define(name: str, operands: str, attributes: str, outputs: int) -> None:
    arguments = ", ".join(filter(None, [operands, "*" if attributes else "", attributes]))
    results = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
    _LIBRARY.define(f"{name}({arguments}) -> {results}", tags=(torch.Tag.pt2_compliant_tag,))


def _overload(name: str) -> Any:
    return getattr(torch.ops.seqmix, name).default


def _has(name: str) -> bool:
    return hasattr(torch.ops.seqmix, name)


def _home(thing: Any) -> str:
    thing = getattr(thing, "func", thing)  # What a partial application is one of.
    return f"{thing.__module__}.{thing.__qualname__} ({inspect.getsourcefile(thing)})"


def _fake(defn: type[OpDef], saved: Saved) -> Callable[..., Any]:
    """The fake kernel: result types by ``infer``, on symbolic shapes too."""

    def result_types(made: OpDef, types: Sequence[TensorType | None]) -> list[TensorType]:
        results = infer_types(made, tuple(types))
        return [*results, *(give(made, *types) for give in saved.values())]

    def fake(*operands: Any, **attributes: Any) -> Any:
        flat = [t for o in operands for t in (o if isinstance(o, list | tuple) else [o])]
        present = [t for t in flat if t is not None]
        made = defn(**{k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()})
        try:
            types = result_types(made, [None if t is None else type_of(t) for t in flat])
        except IRError:
            if torch.compiler.is_exporting() or all(map(_is_static, present)):
                raise
            types = result_types(made, _settled(made, flat))
        symbols = Symbols(present)
        out = tuple(symbols.empty(type, present[0].device) for type in types)
        return out[0] if len(out) == 1 else out

    return fake


def _is_static(tensor: Tensor) -> bool:
    return all(isinstance(size, int) for size in tensor.shape)


def _settled(made: OpDef, operands: Sequence[Tensor | None]) -> list[TensorType | None]:
    """Types of operands that the op takes: torch.compile may make any size a symbol of its own.

    Sizes that are equal now are taken to be equal (those of keys and values, say); where that is
    not enough, all are fixed (a number of heads). torch guards on both, and compiles anew where
    they are not.
    """
    _equate([tensor for tensor in operands if tensor is not None])
    types = [None if tensor is None else type_of(tensor) for tensor in operands]
    try:
        infer_types(made, tuple(types))
    except IRError:
        return [None if t is None else type_of(t).with_shape(_fixed(t)) for t in operands]
    return types


def _equate(tensors: Sequence[Tensor]) -> None:
    """Have torch assume that symbolic sizes are equal where they are in its example."""
    seen: dict[int, Any] = {}
    for size in (size for tensor in tensors for size in tensor.shape):
        if isinstance(size, int) or not size.node.has_hint():
            continue
        bool(seen.setdefault(size.node.hint, size) == size)


def _fixed(tensor: Tensor) -> tuple[int, ...]:
    """The sizes as numbers."""
    return tuple(int(size) for size in tensor.shape)


def _register_backward(bound: TorchOp, backward: Backward, attributes: str) -> None:
    """Define ``seqmix::<name>_backward`` and make it the derivative of ``seqmix::<name>``."""
    name, count = f"{bound.name}_backward", len(bound.defn.operands)
    results = len(bound.defn.results)
    outputs = results + bound.saves
    parts = [f"Tensor grad{i}" for i in range(results)]
    parts.append(_operand_schema(bound.defn))
    parts += [f"Tensor out{i}" for i in range(outputs)]
    _define(name, ", ".join(parts), ", ".join(filter(None, ["bool[] needs", attributes])), count)
    _LIBRARY.impl(name, _flat_backward(bound, backward), "CompositeExplicitAutograd")
    torch.library.register_fake(f"seqmix::{name}", _fake_backward(results, count), lib=_LIBRARY)
    torch.library.register_autograd(f"seqmix::{name}", _no_second_derivative(bound), lib=_LIBRARY)
    derivative = _overload(name)

    def setup_context(
        ctx: Any, inputs: Any, keyword_only_inputs: Any = None, output: Any = None
    ) -> None:
        out = output if isinstance(output, tuple) else (output,)
        ctx.attributes = keyword_only_inputs or {}
        ctx.mark_non_differentiable(*out[results:])
        ctx.save_for_backward(*inputs, *out)

    def differentiate(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        needs = [bool(n) for n in ctx.needs_input_grad]
        found = derivative(*grads[:results], *ctx.saved_tensors, needs=needs, **ctx.attributes)
        found = found if isinstance(found, list | tuple) else (found,)
        return tuple(g if need else None for g, need in zip(found, needs, strict=True))

    torch.library.register_autograd(
        f"seqmix::{bound.name}", differentiate, setup_context=setup_context, lib=_LIBRARY
    )


def _flat_backward(bound: TorchOp, backward: Backward) -> Callable[..., Any]:
    """The backward function as a kernel: flat tensors in, one tensor per operand out."""
    results, count = len(bound.defn.results), len(bound.defn.operands)

    def kernel(*tensors: Any, needs: list[bool], **attributes: Any) -> Any:
        grads, operands = tensors[:results], tensors[results : results + count]
        found = backward(grads, operands, tensors[results + count :], tuple(needs), **attributes)
        absent = [
            name
            for name, grad, need in zip(bound.defn.operands, found, needs, strict=True)
            if need and grad is None
        ]
        if absent:
            raise PluginError(
                f"seqmix::{bound.name} has no gradient for {', '.join(absent)}; detach it, or "
                "return its gradient from the op's backward function"
            )
        out = tuple(
            grad.contiguous() if need and grad is not None else grads[0].new_empty(0)
            for grad, need in zip(found, needs, strict=True)
        )
        return out[0] if count == 1 else out

    return kernel


def _fake_backward(results: int, count: int) -> Callable[..., Any]:
    def fake(*tensors: Any, needs: list[bool], **attributes: Any) -> Any:
        out = tuple(
            operand.new_empty(operand.shape) if need else tensors[0].new_empty(0)
            for operand, need in zip(tensors[results : results + count], needs, strict=True)
        )
        return out[0] if count == 1 else out

    return fake


def _no_second_derivative(bound: TorchOp) -> Callable[..., Any]:
    def refuse(ctx: Any, *grads: Any) -> Any:
        raise PluginError(
            f"seqmix::{bound.name} has no second derivative; call backward without create_graph"
        )

    return refuse
