"""The kernels of the mLSTM cell, and what runs on them."""

from __future__ import annotations

from torch import Tensor

# Binds the op whose implementation on a device is replaced.
import seqmix_xlstm.mlstm  # noqa: F401
from seqmix_ir.graph import Op
from seqmix_triton.lowering import Kernels
from seqmix_triton.run import GraphRun
from seqmix_xlstm.triton.kernels.backward import (
    MLSTM_KEY_SLOPE,
    MLSTM_QUERY_SLOPE,
    MLSTM_VALUE_SLOPE,
)
from seqmix_xlstm.triton.kernels.forward import MLSTM_OUTPUTS, MLSTM_STATES
from seqmix_xlstm.triton.kernels.gate_backward import MLSTM_GATE_SLOPE
from seqmix_xlstm.triton.kernels.gates import MLSTM_GATES
from seqmix_xlstm.triton.kernels.state_backward import MLSTM_DIVISION_SLOPE, MLSTM_STATE_SLOPE
from seqmix_xlstm.triton.kernels.step import MLSTM_STEP
from seqmix_xlstm.triton.op import mlstm_backward, mlstm_forward

__all__ = ["KERNELS"]


def _run(run: GraphRun, op: Op, *operands: Tensor) -> tuple[Tensor, ...]:
    return mlstm_forward(*operands, **op.defn.attributes())[:3]


KERNELS = Kernels(
    _run,
    (
        MLSTM_STATES,
        MLSTM_OUTPUTS,
        MLSTM_STEP,
        MLSTM_GATES,
        MLSTM_DIVISION_SLOPE,
        MLSTM_STATE_SLOPE,
        MLSTM_QUERY_SLOPE,
        MLSTM_KEY_SLOPE,
        MLSTM_VALUE_SLOPE,
        MLSTM_GATE_SLOPE,
    ),
    {"xlstm.mlstm": mlstm_forward, "xlstm.mlstm_backward": mlstm_backward},
)
