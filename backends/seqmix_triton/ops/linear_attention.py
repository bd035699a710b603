"""``seqmix::linear_attention`` on the kernels.

B batch, H heads, S sequence, K key size, V value size; N chunks of C tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from seqmix_triton.kernels.linear_attention import (
    CHUNK_OUTPUTS,
    CHUNK_STATES,
    LINEAR_ATTENTION_STEP,
)
from seqmix_triton.kernels.linear_attention_backward import (
    CHUNK_KEY_SLOPE,
    CHUNK_QUERY_SLOPE,
    CHUNK_VALUE_SLOPE,
)
from seqmix_triton.kernels.linear_attention_state_backward import (
    CHUNK_DECAY_SLOPE,
    CHUNK_STATE_SLOPE,
)
from seqmix_triton.ops.layout import rows_together

__all__ = ["linear_attention_backward", "linear_attention_forward"]

_KEY_CHUNK = 16
"""The longest chunk with decays per key channel: what the op's saved states are laid out for."""


def linear_attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    state: Tensor,
    *,
    chunk: int = 64,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the last state, and the states before each chunk ``[B, H, N, K, V]``."""
    call = _Call(q, k, v, log_decay, chunk)
    B, H, S, V = v.shape
    y, last = v.new_empty(B, H, S, V), state.new_empty(state.shape)
    before = q.new_empty(B, H, call.N, q.shape[-1], V, dtype=call.wide)
    given = {"state": state.contiguous(), "before": before, "last": last}
    if S == 1:
        call.step(LINEAR_ATTENTION_STEP, given | {"y": y})
        return y, last, before
    call.over_state(CHUNK_STATES, "kv", given)
    call.over_rows(CHUNK_OUTPUTS, "qkv", "V", {"before": before, "y": y})
    return y, last, before


def linear_attention_backward(
    grads: tuple[Tensor, ...],
    operands: tuple[Tensor | None, ...],
    outputs: tuple[Tensor, ...],
    needs: tuple[bool, ...],
    *,
    chunk: int = 64,
) -> list[Tensor | None]:
    """Gradients of q, k, v, the decays and the state."""
    q, k, v, state = (t for i, t in enumerate(operands) if i != 3 and t is not None)
    call = _Call(q, k, v, operands[3], chunk)
    grad, before = grads[0].contiguous(), outputs[2].contiguous()
    behind, first = torch.empty_like(before), state.new_empty(state.shape)
    dq, dk, dv = (t.new_empty(t.shape) for t in (q, k, v))
    shares = call.shares()
    given = {
        "grad": grad, "before": before, "last": outputs[1].contiguous(), "behind": behind,
        "last_grad": grads[1].contiguous(), "first": first, "edge": shares[2],
    }  # fmt: skip
    call.over_state(CHUNK_STATE_SLOPE, "q", given)
    given = {"grad": grad, "before": before, "dq": dq, "share": shares[0]}
    call.over_rows(CHUNK_QUERY_SLOPE, "qkv", "K", given)
    given = {"grad": grad, "behind": behind, "dk": dk, "share": shares[1]}
    call.over_rows(CHUNK_KEY_SLOPE, "qkv", "K", given)
    call.over_rows(CHUNK_VALUE_SLOPE, "qk", "V", {"grad": grad, "behind": behind, "dv": dv})
    return [dq, dk, dv, call.decay_gradient(shares) if needs[3] else None, first]


class _Call:
    """One call: its sizes, constants, and how its kernels are launched."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, chunk: int
    ) -> None:
        self._operands = {"q": rows_together(q), "k": rows_together(k), "v": rows_together(v)}
        # Without decays the pointer leads anywhere, and is not read.
        self._g = q if log_decay is None else log_decay.contiguous()
        self._decay = 0 if log_decay is None else log_decay.dim() - 2
        B, H, self._S, K = q.shape
        self._heads, self._H, C = B * H, H, min(chunk, _KEY_CHUNK) if self._decay == 2 else chunk
        self.N = triton.cdiv(self._S, C)
        self.wide = torch.promote_types(q.dtype, torch.float32)
        self._constants = {"K": K, "V": v.shape[-1], "C": C, "DECAY": self._decay}

    def step(self, kernel: Any, given: dict[str, Any]) -> None:
        """One program per head and tile of values."""
        constants = {n: self._constants[n] for n in ("K", "V", "DECAY")}
        arguments = given | self._strided("qkv", "bh") | {"g": self._g, "H": self._H}
        V = constants["V"]
        kernel.launch(
            lambda tiles: (triton.cdiv(V, tiles["BLOCK_V"]), self._heads),
            self._operands["q"].dtype, arguments, constants,
        )  # fmt: skip

    def over_state(self, kernel: Any, operands: str, given: dict[str, Any]) -> None:
        """One program per head and tile of the state, along the sequence."""
        c = self._constants
        self._launch(kernel, operands, given, lambda tiles: (
            triton.cdiv(c["K"], tiles["BLOCK_K"]), triton.cdiv(c["V"], tiles["BLOCK_V"]),
            self._heads,
        ))  # fmt: skip

    def over_rows(self, kernel: Any, operands: str, axis: str, given: dict[str, Any]) -> None:
        """One program per head, tile of rows, and tile of keys or values."""
        c = self._constants
        self._launch(kernel, operands, given, lambda tiles: (
            triton.cdiv(c[axis], tiles[f"BLOCK_{axis}"]),
            self.N * triton.cdiv(c["C"], tiles["L"]), self._heads,
        ))  # fmt: skip

    def shares(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Room for what queries, keys and states add to the gradient of the decays."""
        if self._decay == 0:
            return None, None, None
        q, c = self._operands["q"], self._constants
        parts = [_parts(kernel, q.dtype, c, "K") for kernel in (CHUNK_QUERY_SLOPE, CHUNK_KEY_SLOPE)]
        sizes = [(n, self._heads, self._S) for n in parts]
        if self._decay == 2:
            sizes = [(self._heads, self._S, c["K"])] * 2
        values = _parts(CHUNK_STATE_SLOPE, q.dtype, c, "V")
        of_queries, of_keys = (q.new_empty(size, dtype=self.wide) for size in sizes)
        edge = q.new_empty(values, self._heads, self.N, c["K"], dtype=self.wide)
        return of_queries, of_keys, edge

    def decay_gradient(self, shares: tuple[Tensor | None, ...]) -> Tensor | None:
        """The gradient of the decays, from their shares."""
        of_queries, of_keys, edge = shares
        if of_queries is None or of_keys is None or edge is None:
            return None
        edge = edge.sum(0)
        if self._decay == 1:
            of_queries, of_keys, edge = of_queries.sum(0), of_keys.sum(0), edge.sum(-1)
        width = self._constants["K"] if self._decay == 2 else 1
        dg = self._g.new_empty(self._g.shape)
        arguments = {
            "of_queries": of_queries, "of_keys": of_keys, "edge": edge, "g": self._g, "dg": dg,
            "S": self._S, "N": self.N,
        }  # fmt: skip
        CHUNK_DECAY_SLOPE.launch(
            lambda tiles: (triton.cdiv(width, tiles["BLOCK_W"]), self.N, self._heads),
            self._operands["q"].dtype, arguments, {"C": self._constants["C"], "WIDTH": width},
        )  # fmt: skip
        return dg

    def _launch(self, kernel: Any, operands: str, given: dict[str, Any], grid: Any) -> None:
        sizes = {"H": self._H, "S": self._S, "N": self.N}
        arguments = given | self._strided(operands, "bhs") | {"g": self._g} | sizes
        kernel.launch(grid, self._operands["q"].dtype, arguments, self._constants)

    def _strided(self, names: str, axes: str) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        for name in names:
            x = self._operands[name]
            arguments[name] = x
            arguments |= {f"{name}_{axis}": x.stride(i) for i, axis in enumerate(axes)}
        return arguments


def _parts(kernel: Any, dtype: torch.dtype, constants: dict[str, int], axis: str) -> int:
    """Tiles along an axis, each of which has a share of its own."""
    return int(triton.cdiv(constants[axis], kernel.choose(dtype, constants).tiles[f"BLOCK_{axis}"]))
