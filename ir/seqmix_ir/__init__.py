"""The graph IR of seqmix: frozen SSA with symbolic sizes; numpy and the standard library only."""

from __future__ import annotations

from seqmix_ir.builder import Builder, infer_types, trace_block
from seqmix_ir.defn import Array, Decomposition, OpDef, Run, op
from seqmix_ir.dims import Dim, Size, dim
from seqmix_ir.errors import IRError
from seqmix_ir.graph import Block, DimInfo, Graph, Module, Op, Value
from seqmix_ir.interpret import Interpreter
from seqmix_ir.ops import CORE_OPS, default_table
from seqmix_ir.table import OpTable
from seqmix_ir.text import fingerprint, parse, show, show_graph
from seqmix_ir.types import DType, Loc, TensorType
from seqmix_ir.verify import verify

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
    "show",
    "show_graph",
    "trace_block",
    "verify",
]
