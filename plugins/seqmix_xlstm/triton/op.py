"""``seqmix::xlstm_mlstm`` on the kernels.

B batch, H heads, S sequence, K key size, V value size; N chunks of C tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from seqmix_triton.kernel import Kernel
from seqmix_triton.ops.layout import rows_together
from seqmix_xlstm.mlstm_op import Mlstm
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

__all__ = ["mlstm_backward", "mlstm_forward"]


def mlstm_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    input_gate: Tensor,
    forget_gate: Tensor,
    state: Tensor,
    m: Tensor,
    **attributes: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """h, the next state and m, and the states before each chunk but the first.

    Operands, results and attributes are those of :class:`~seqmix_xlstm.mlstm_op.Mlstm`; the states
    of chunks are ``[N - 1, B, H, K, V + 1]``. A whole sequence takes two launches, a token one.
    """
    call = _Call((q, k, v, input_gate, forget_gate, state, m), Mlstm(**attributes))
    h, last, last_m = (t.new_empty(t.shape) for t in (v, state, m))
    out = {"h": h, "last": last, "last_m": last_m}
    states = call.wide(call.N - 1, *state.shape)
    if call.S == 1:
        call.step(MLSTM_STEP, out)
        return h, last, last_m, states
    out |= call.gates() | {"states": states}
    call.over_state(MLSTM_STATES, out)
    call.over_rows(MLSTM_OUTPUTS, "V", out)
    return h, last, last_m, states


def mlstm_backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
    **attributes: Any,
) -> list[Tensor | None]:
    """Gradients of all operands, through the divisor and the stabiliser too."""
    defn = Mlstm(**attributes)
    call = _Call(operands, defn)
    dq, dk, dv, di, df, first, dm = (t.new_empty(t.shape) for t in operands)
    found = call.gates() | call.shares() | {
        "grad": grads[0].contiguous(), "last_grad": grads[1].contiguous(),
        "last_m_grad": grads[2].contiguous(), "h": outputs[0].contiguous(),
        "last": outputs[1].contiguous(), "states": outputs[3].contiguous(),
        "behind": call.wide(call.N, *operands[5].shape),
        "dq": dq, "dk": dk, "dv": dv, "di": di, "df": df, "first": first, "dm": dm,
    }  # fmt: skip
    call.over_heads(MLSTM_GATES, found)
    if defn.normalize:
        call.over_rows(MLSTM_DIVISION_SLOPE, "", found)
    call.over_state(MLSTM_STATE_SLOPE, found)
    call.over_rows(MLSTM_QUERY_SLOPE, "K", found | {"share": found["of_queries"]})
    call.over_rows(MLSTM_KEY_SLOPE, "K", found | {"share": found["of_keys"]})
    call.over_rows(MLSTM_VALUE_SLOPE, "V", found)
    call.over_heads(MLSTM_GATE_SLOPE, found)
    return [dq, dk, dv, di, df, first, dm]


class _Call:
    """One call: its sizes, constants, and how its kernels are launched."""

    def __init__(self, operands: tuple[Tensor, ...], cell: Mlstm) -> None:
        q, k, v, i, f, state, m = operands
        B, H, self.S, K = q.shape
        self._heads, self._dtype = B * H, q.dtype
        self._wide = torch.promote_types(q.dtype, torch.float32)
        self.N = triton.cdiv(self.S, cell.chunk)
        self._given: dict[str, Any] = {
            "q": rows_together(q), "k": rows_together(k), "v": rows_together(v), "i": i, "f": f,
            "state": state.to(self._wide).contiguous(), "m": m.contiguous(),
            "H": H, "S": self.S, "N": self.N,
        }  # fmt: skip
        for name in "qkvif":
            strides = zip("bhs", self._given[name].stride()[:3], strict=True)
            self._given |= {f"{name}_{axis}": stride for axis, stride in strides}
        on_q = cell.scale_on == "q"
        self._constants: dict[str, Any] = {
            "K": K, "V": v.shape[3], "C": cell.chunk, "CAP": cell.soft_cap, "EPS": cell.eps,
            "STABLE": cell.stabilised, "NORMALIZE": cell.normalize,
            "SCALE_Q": K**-0.5 if on_q else 1.0, "SCALE_K": 1.0 if on_q else K**-0.5,
        }  # fmt: skip

    def wide(self, *shape: int) -> Tensor:
        """Room in the dtype of the sums."""
        return torch.empty(shape, dtype=self._wide, device=self._given["q"].device)

    def gates(self) -> dict[str, Tensor]:
        """Room for the logs of decays and weights, and for the stabiliser."""
        return {n: self.wide(self._heads, self.S) for n in ("decay", "weight", "track")}

    def shares(self) -> dict[str, Tensor]:
        """Room for what passes between the kernels of the backward pass."""
        parts = {
            "QUERY_PARTS": self._tiles(MLSTM_QUERY_SLOPE, "K"),
            "KEY_PARTS": self._tiles(MLSTM_KEY_SLOPE, "K"),
            "EDGE_PARTS": self._tiles(MLSTM_STATE_SLOPE, "K") * self._tiles(MLSTM_STATE_SLOPE, "V"),
        }
        self._constants |= parts
        room = {n: self.wide(self._heads, self.S) for n in ("inverse", "reads")}
        stable = self._constants["STABLE"]
        return room | {
            "of_m": self.wide(self._heads, self.S) if stable else room["inverse"],
            "of_queries": self.wide(parts["QUERY_PARTS"], self._heads, self.S),
            "of_keys": self.wide(parts["KEY_PARTS"], self._heads, self.S),
            "edge": self.wide(parts["EDGE_PARTS"], self._heads, self.N),
        }

    def step(self, kernel: Kernel, found: dict[str, Any]) -> None:
        """One program per head and tile of values."""
        V = self._constants["V"]
        self._launch(kernel, found, lambda tiles: (triton.cdiv(V, tiles["BLOCK_V"]), self._heads))

    def over_state(self, kernel: Kernel, found: dict[str, Any]) -> None:
        """One program per head and tile of the state, along the sequence."""
        c = self._constants
        self._launch(kernel, found, lambda tiles: (
            triton.cdiv(c["K"], tiles["BLOCK_K"]), triton.cdiv(c["V"], tiles["BLOCK_V"]),
            self._heads,
        ))  # fmt: skip

    def over_rows(self, kernel: Kernel, axis: str, found: dict[str, Any]) -> None:
        """One program per head, tile of rows, and tile along ``axis`` if there is one."""
        c = self._constants
        self._launch(kernel, found, lambda tiles: (
            *([triton.cdiv(c[axis], tiles[f"BLOCK_{axis}"])] if axis else []),
            self.N * triton.cdiv(c["C"], tiles["L"]), self._heads,
        ))  # fmt: skip

    def over_heads(self, kernel: Kernel, found: dict[str, Any]) -> None:
        """One program per head, along the sequence."""
        self._launch(kernel, found, lambda tiles: (self._heads,))

    def _launch(self, kernel: Kernel, found: dict[str, Any], grid: Any) -> None:
        known = self._given | found
        arguments = {name: known[name] for name in kernel.arguments}
        constants = self._constants_of(kernel)
        kernel.launch(grid, self._dtype, arguments, constants)

    def _constants_of(self, kernel: Kernel) -> dict[str, Any]:
        return {n: x for n, x in self._constants.items() if n in kernel.fn.arg_names}

    def _tiles(self, kernel: Kernel, axis: str) -> int:
        """Tiles along an axis, each of which has a share of its own."""
        config = kernel.choose(self._dtype, self._constants_of(kernel))
        return int(triton.cdiv(self._constants[axis], config.tiles[f"BLOCK_{axis}"]))
