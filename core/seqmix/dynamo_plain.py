"""What torch's own modules do for speed, undone: writing in place, and functions fused by hand.

torch.nn.TransformerEncoderLayer and torch.nn.MultiheadAttention call the latter when nobody asks
for gradients. B batch, S sequence, D width, H heads.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

__all__ = ["PlainInterpreter"]


class PlainInterpreter(fx.Interpreter):
    """Runs a graph of torch.compile without fused functions and, where it may, without writing.

    A tensor that the graph itself has made and nobody has a view of is replaced by a new one
    instead of being written to. Arguments are left to be written to: that is refused elsewhere.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        """Note who shares memory with whom, which torch.compile has found out."""
        super().__init__(module)
        self._current: fx.Node | None = None
        self._memory = {node: _memory_of(node) for node in module.graph.nodes}

    def run_node(self, n: fx.Node) -> Any:
        """Run one node."""
        self._current = n
        return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the plain form where there is one."""
        if kwargs.get("inplace") is True and self._may_replace(args[0]):
            out = super().call_function(target, args, {**kwargs, "inplace": False})
            return self._replaced(args[0], out)
        if target in _OPERATORS and self._may_replace(args[0]):
            return self._replaced(args[0], _OPERATORS[target](*args, **kwargs))
        return super().call_function(_PLAIN.get(target, target), args, kwargs)

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``x.add`` for ``x.add_``."""
        name = str(target)
        plain = name[:-1]
        writes = name.endswith("_") and not name.endswith("__") and hasattr(Tensor, plain)
        if writes and self._may_replace(args[0]):
            return self._replaced(args[0], super().call_method(plain, args, kwargs))
        return super().call_method(target, args, kwargs)

    def _may_replace(self, x: Any) -> bool:
        """Whether what is written to the first argument, ``x``, shows nowhere but in ``x``."""
        node = None if self._current is None else self._current.args[0]
        if not isinstance(x, Tensor) or not isinstance(node, fx.Node):
            return False
        sharing = [other for other, memory in self._memory.items() if memory & self._memory[node]]
        given = any(other.op in ("placeholder", "get_attr") for other in sharing)
        views = any(other in self.env and self.env[other] is not x for other in sharing)
        return bool(self._memory[node]) and not given and not views

    def _replaced(self, old: Tensor, new: Tensor) -> Tensor:
        """The new tensor, which takes the place of the old one wherever that is read later."""
        new = new.to(old.dtype)
        for node, value in self.env.items():
            if value is old:
                self.env[node] = new
        return new


def _memory_of(node: fx.Node) -> frozenset[int]:
    """The storages of a node's tensors, as numbers that hold while torch's own examples live."""
    example = node.meta.get("example_value")
    several = example if isinstance(example, tuple | list) else [example]
    tensors = (value for value in several if isinstance(value, Tensor))
    return frozenset(tensor.untyped_storage()._cdata for tensor in tensors)


def _encoder_layer(
    src: Tensor,
    embed_dim: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Attention and feed-forward, each with its residual sum and norm."""

    def norm_1(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attend(x: Tensor) -> Tensor:
        qkv = F.linear(x, qkv_weight, qkv_bias)
        return F.linear(_attended(qkv, heads, mask, mask_type)[0], proj_weight, proj_bias)

    def feed_forward(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        active = F.gelu(hidden) if use_gelu else F.relu(hidden)
        return F.linear(active, ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attend(norm_1(src))
        return x + feed_forward(norm_2(x))
    x = norm_1(src + attend(src))
    return norm_2(x + feed_forward(x))


def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attention of x to itself, and its weights; torch's function takes no others either."""
    qkv = F.linear(query, qkv_weight, qkv_bias)
    y, weights = _attended(qkv, num_head, mask, mask_type)
    shown = weights.mean(1) if average_attn_weights else weights
    return F.linear(y, proj_weight, proj_bias), shown if need_weights else None


def _attended(
    qkv: Tensor, heads: int, mask: Tensor | None, mask_type: int | None
) -> tuple[Tensor, Tensor]:
    """What the heads read, ``[B, S, D]``, and their weights; ``qkv`` is ``[B, S, 3 D]``."""
    q, k, v = (
        part.reshape(*part.shape[:-1], heads, part.shape[-1] // heads).transpose(1, 2)
        for part in qkv.chunk(3, -1)
    )
    logits = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    if mask is not None:
        logits = logits.masked_fill(_broadcast(mask, mask_type).to(torch.bool), -math.inf)
    weights = torch.softmax(logits, -1)
    return (weights @ v).transpose(1, 2).flatten(2), weights


def _broadcast(mask: Tensor, mask_type: int | None) -> Tensor:
    """A mask of keys ``[B, S]`` (type 1) for all heads and queries; others broadcast as they are.

    What is not 0 is masked.
    """
    return mask[:, None, None, :] if mask_type == 1 else mask


_PLAIN: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch._transformer_encoder_layer_fwd: _encoder_layer,
    torch._native_multi_head_attention: _multi_head_attention,
}
_OPERATORS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    operator.iadd: operator.add,
    operator.iand: operator.and_,
    operator.imul: operator.mul,
    operator.ior: operator.or_,
    operator.isub: operator.sub,
    operator.itruediv: operator.truediv,
}
