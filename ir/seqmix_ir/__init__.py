"""The graph IR of seqmix: frozen SSA with symbolic sizes; numpy and the standard library only.

Public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seqmix_ir.builder import Builder, infer_types, trace_block
    from seqmix_ir.defn import Array, Decomposition, OpDef, Run, op
    from seqmix_ir.dims import Dim, Size, dim
    from seqmix_ir.errors import IRError
    from seqmix_ir.graph import Block, DimInfo, Graph, Module, Op, Value
    from seqmix_ir.interpret import Interpreter
    from seqmix_ir.ops import CORE_OPS, default_table
    from seqmix_ir.passes import specialise
    from seqmix_ir.table import OpTable
    from seqmix_ir.text import fingerprint, parse, same, show, show_graph
    from seqmix_ir.types import DType, Loc, TensorType
    from seqmix_ir.verifier import verify

__all__ = [
    "CORE_OPS",
    "Array",
    "Block",
    "Builder",
    "DType",
    "Decomposition",
    "Dim",
    "DimInfo",
    "Graph",
    "IRError",
    "Interpreter",
    "Loc",
    "Module",
    "Op",
    "OpDef",
    "OpTable",
    "Run",
    "Size",
    "TensorType",
    "Value",
    "default_table",
    "dim",
    "fingerprint",
    "infer_types",
    "op",
    "parse",
    "same",
    "show",
    "show_graph",
    "specialise",
    "trace_block",
    "verify",
]

_HOMES = {
    "builder": ("Builder", "infer_types", "trace_block"),
    "defn": ("Array", "Decomposition", "OpDef", "Run", "op"),
    "dims": ("Dim", "Size", "dim"),
    "errors": ("IRError",),
    "graph": ("Block", "DimInfo", "Graph", "Module", "Op", "Value"),
    "interpret": ("Interpreter",),
    "ops": ("CORE_OPS", "default_table"),
    "passes": ("specialise",),
    "table": ("OpTable",),
    "text": ("fingerprint", "parse", "same", "show", "show_graph"),
    "types": ("DType", "Loc", "TensorType"),
    "verifier": ("verify",),
}
_MODULES = {name: module for module, exported in _HOMES.items() for name in exported}


def __getattr__(name: str) -> Any:
    """Load a public name at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module 'seqmix_ir' has no attribute '{name}'")
    value = getattr(import_module(f"seqmix_ir.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
