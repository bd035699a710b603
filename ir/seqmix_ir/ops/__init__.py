"""The core ops: what every backend knows, one module per family."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from seqmix_ir.defn import OpDef
from seqmix_ir.ops import (
    activation,
    arithmetic,
    attention,
    cast,
    causal_conv1d,
    clip_gradient,
    constants,
    conv1d,
    cross_entropy,
    cumulative,
    elementwise,
    fourier,
    index,
    linear,
    linear_attention,
    linear_scan,
    logic,
    long_conv,
    norm,
    ordering,
    reduce,
    rotary,
    scan,
    segments,
    selected_attention,
    shape,
    transcendental,
)
from seqmix_ir.ops.activation import Gelu, Relu, Sigmoid, Silu, Softplus
from seqmix_ir.ops.arithmetic import Add, Div, FloorDiv, Maximum, Minimum, Mod, Mul, Pow, Sub
from seqmix_ir.ops.attention import Attention
from seqmix_ir.ops.cast import Cast
from seqmix_ir.ops.causal_conv1d import CausalConv1d
from seqmix_ir.ops.clip_gradient import ClipGradient
from seqmix_ir.ops.constants import Constant, Iota, SizeOf, Weight, constant, size_value
from seqmix_ir.ops.conv1d import Conv1d
from seqmix_ir.ops.cross_entropy import CrossEntropy
from seqmix_ir.ops.cumulative import CumMax, CumMin, CumProd, LogCumSumExp
from seqmix_ir.ops.elementwise import (
    Abs,
    Ceil,
    Cos,
    Erf,
    Exp,
    Floor,
    Log,
    Neg,
    Not,
    Reciprocal,
    Round,
    Sign,
    Sin,
    Sqrt,
    Tanh,
)
from seqmix_ir.ops.fourier import Irfft, Rfft
from seqmix_ir.ops.index import Gather, GatherElements, ScatterElements
from seqmix_ir.ops.linear import Linear, Matmul
from seqmix_ir.ops.linear_attention import LinearAttention
from seqmix_ir.ops.linear_scan import LinearScan
from seqmix_ir.ops.logic import (
    And,
    Equal,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    NotEqual,
    Or,
    Where,
)
from seqmix_ir.ops.long_conv import LongConv
from seqmix_ir.ops.norm import LayerNorm, RmsNorm
from seqmix_ir.ops.ordering import ArgMin, TopK
from seqmix_ir.ops.reduce import ArgMax, CumSum, Reduce, Softmax
from seqmix_ir.ops.rotary import Rotary
from seqmix_ir.ops.scan import Scan
from seqmix_ir.ops.segments import Concat, Pad, Slice
from seqmix_ir.ops.selected_attention import SelectedAttention
from seqmix_ir.ops.shape import Expand, Reshape, Squeeze, Transpose, Unsqueeze
from seqmix_ir.ops.transcendental import (
    Acos,
    Acosh,
    Asin,
    Asinh,
    Atan,
    Atanh,
    Cosh,
    Expm1,
    Log1p,
    Sinh,
    Tan,
)
from seqmix_ir.table import OpTable

__all__ = [
    "CORE_OPS",
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "And",
    "ArgMax",
    "ArgMin",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Attention",
    "Cast",
    "CausalConv1d",
    "Ceil",
    "ClipGradient",
    "Concat",
    "Constant",
    "Conv1d",
    "Cos",
    "Cosh",
    "CrossEntropy",
    "CumMax",
    "CumMin",
    "CumProd",
    "CumSum",
    "Div",
    "Equal",
    "Erf",
    "Exp",
    "Expand",
    "Expm1",
    "Floor",
    "FloorDiv",
    "Gather",
    "GatherElements",
    "Gelu",
    "Greater",
    "GreaterEqual",
    "Iota",
    "Irfft",
    "LayerNorm",
    "Less",
    "LessEqual",
    "Linear",
    "LinearAttention",
    "LinearScan",
    "Log",
    "Log1p",
    "LogCumSumExp",
    "LongConv",
    "Matmul",
    "Maximum",
    "Minimum",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "NotEqual",
    "Or",
    "Pad",
    "Pow",
    "Reciprocal",
    "Reduce",
    "Relu",
    "Reshape",
    "Rfft",
    "RmsNorm",
    "Rotary",
    "Round",
    "Scan",
    "ScatterElements",
    "SelectedAttention",
    "Sigmoid",
    "Sign",
    "Silu",
    "Sin",
    "Sinh",
    "SizeOf",
    "Slice",
    "Softmax",
    "Softplus",
    "Sqrt",
    "Squeeze",
    "Sub",
    "Tan",
    "Tanh",
    "TopK",
    "Transpose",
    "Unsqueeze",
    "Weight",
    "Where",
    "constant",
    "default_table",
    "size_value",
]

CORE_OPS: tuple[type[OpDef], ...] = (
    *activation.OPS,
    *arithmetic.OPS,
    *attention.OPS,
    *cast.OPS,
    *causal_conv1d.OPS,
    *clip_gradient.OPS,
    *constants.OPS,
    *conv1d.OPS,
    *cross_entropy.OPS,
    *cumulative.OPS,
    *elementwise.OPS,
    *fourier.OPS,
    *index.OPS,
    *linear.OPS,
    *linear_attention.OPS,
    *linear_scan.OPS,
    *logic.OPS,
    *long_conv.OPS,
    *norm.OPS,
    *ordering.OPS,
    *reduce.OPS,
    *rotary.OPS,
    *scan.OPS,
    *segments.OPS,
    *selected_attention.OPS,
    *shape.OPS,
    *transcendental.OPS,
)


def default_table(
    load: Callable[[str], type[OpDef] | None] | None = None,
    more_names: Callable[[], Iterable[str]] = tuple,
) -> OpTable:
    """A table of the core ops; ``load`` and ``more_names`` bring those of plugins."""
    return OpTable(CORE_OPS, load, more_names)
